"""Submissions that the coordinator has not answered, in the order in which they are sent again to the next one."""

from collections.abc import Iterator

from api_server.live_generation import LiveGeneration
from protocol.identifiers import RequestId

MAX_UNACKNOWLEDGED = 4_096
MAX_UNACKNOWLEDGED_BYTES = 256 * 1024 * 1024
"""Of packed prompts and grammars. More than either of the two is refused as overload."""


class Unacknowledged:
    """Bounded table of generations, in the order of their submission."""

    def __init__(self) -> None:
        self._generations: dict[RequestId, LiveGeneration] = {}
        self._postponed: dict[RequestId, LiveGeneration] = {}
        """Those of them that the coordinator could not place, or be sent, just now: to be sent again a little later."""
        self._bytes = 0

    def __iter__(self) -> Iterator[LiveGeneration]:
        return iter(self._generations.values())

    def has_room(self, nbytes: int) -> bool:
        """Whether one more fits, with a prompt and grammar of this size."""
        return len(self._generations) < MAX_UNACKNOWLEDGED and self._bytes + nbytes <= MAX_UNACKNOWLEDGED_BYTES

    def add(self, generation: LiveGeneration) -> None:
        """Keeps it until `remove`."""
        self._generations[generation.submit.request_id] = generation
        self._bytes += generation.submit.nbytes

    def __contains__(self, generation: LiveGeneration) -> bool:
        return generation.submit.request_id in self._generations

    def remove(self, generation: LiveGeneration) -> None:
        """It was answered, or it ended; idempotent."""
        self._postponed.pop(generation.submit.request_id, None)
        if self._generations.pop(generation.submit.request_id, None) is not None:
            self._bytes -= generation.submit.nbytes

    def postpone(self, generation: LiveGeneration) -> None:
        """It is to be sent again a little later."""
        assert generation in self
        self._postponed[generation.submit.request_id] = generation

    def is_postponed(self, generation: LiveGeneration) -> bool:
        """Whether it waits for that."""
        return generation.submit.request_id in self._postponed

    def take_postponed(self) -> list[LiveGeneration]:
        """Those that are to be sent now."""
        postponed = list(self._postponed.values())
        self._postponed.clear()
        return postponed

    def check_invariants(self) -> None:
        """For tests. What is resumed is let in also beyond the limits: it was there before."""
        assert self._postponed.keys() <= self._generations.keys()
        assert not any(generation.is_acknowledged for generation in self)
        assert self._bytes == sum(generation.submit.nbytes for generation in self)
