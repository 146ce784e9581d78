"""Telling a request that kills engine cores from those that only happened to be there.

All that an engine core had when it died goes on elsewhere at once, for nearly all of it is innocent. The first new
token clears a generation: whatever happened, it can be computed. One that sees two engine cores die without a new
token between is a suspect, and so may be those beside it in the same step. Suspects go on one at a time: each waits
until the one before it is cleared or has ended. So the third death in a row finds the one that caused it without
another suspect of this API server beside it: that one is poison, and fails alone.
"""

from collections.abc import Iterator

from api_server.live_generation import LiveGeneration
from protocol.identifiers import RequestId

SUSPECT_AFTER_DEATHS = 2
POISON_AFTER_DEATHS = 3
"""In a row, with no new token of the generation between."""


class Probation:
    """Owner of the order in which suspects go on."""

    def __init__(self) -> None:
        self._suspects: dict[RequestId, LiveGeneration] = {}

    def __iter__(self) -> Iterator[LiveGeneration]:
        return iter(self._suspects.values())

    def __contains__(self, generation: LiveGeneration) -> bool:
        return generation.submit.request_id in self._suspects

    @property
    def first(self) -> LiveGeneration | None:
        """The one that may run; None when nobody is a suspect."""
        return next(iter(self._suspects.values()), None)

    def add(self, generation: LiveGeneration) -> None:
        """It has become a suspect, or is one; its place stays."""
        self._suspects.setdefault(generation.submit.request_id, generation)

    def leave(self, generation: LiveGeneration) -> None:
        """It is cleared, or has ended; idempotent."""
        self._suspects.pop(generation.submit.request_id, None)

    def check_invariants(self) -> None:
        """For tests."""
        for generation in self:
            assert generation.deaths_in_a_row >= SUSPECT_AFTER_DEATHS
            assert generation is self.first or generation.is_held
