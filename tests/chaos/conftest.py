"""The real clusters of tests/cluster serve here too."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent / "cluster"))
