"""`python -m deploy` is `shoal`: how the supervisor starts its children."""

import sys

from deploy.cli import main

sys.exit(main())
