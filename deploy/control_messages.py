"""What `shoal drain`, `restart` and `scale` say to the supervisor of a running `shoal serve`, and what it answers.

One request per connection, as a line of JSON; the answer is any number of Progress lines and one Done.
"""

from typing import Annotated

import msgspec
from msgspec import Meta

Count = Annotated[int, Meta(ge=1, le=256)]
"""Of processes of a role, as in ServeConfig."""


class Drain(msgspec.Struct, frozen=True, tag="drain", forbid_unknown_fields=True):
    """End this engine core or API server when its requests have ended; do not start it again."""

    name: str


class RestartRolling(msgspec.Struct, frozen=True, tag="restart_rolling", forbid_unknown_fields=True):
    """Replace every process, one after the other, by a new one of what is installed now."""


class Scale(msgspec.Struct, frozen=True, tag="scale", forbid_unknown_fields=True):
    """Run so many; None for as many as there are."""

    engines: Count | None = None
    api_servers: Count | None = None


ControlRequest = Drain | RestartRolling | Scale


class Progress(msgspec.Struct, frozen=True, tag="progress"):
    """A step is done, or has begun."""

    text: str


class Done(msgspec.Struct, frozen=True, tag="done"):
    """Nothing follows."""

    ok: bool
    text: str


ControlAnswer = Progress | Done
