"""Submissions that wait for engine cores to say Hello: all kinds in a coordinator that has just started, later only
those that have lost their engine core."""

from collections.abc import Iterator, Sequence

import msgspec

from coordinator.clients import ClientMember
from coordinator.events import Identity
from protocol.codec import Frame
from protocol.identifiers import RequestId
from protocol.messages import EngineCoreRequest
from protocol.prefix_hash import BlockKey, unpack_block_keys

MAX_WAITING = 4096
MAX_WAITING_BYTES = 64 * 1024 * 1024
"""Of prompts; at either limit a submission is refused instead."""


class Submission(msgspec.Struct, frozen=True):
    """A request as an API server sent it."""

    client: ClientMember
    request: EngineCoreRequest
    frames: Sequence[Frame]

    @property
    def num_bytes(self) -> int:
        """Size of its frames."""
        return sum(map(len, self.frames))

    @property
    def block_keys(self) -> list[BlockKey]:
        """Those of its prompt, as many as its sender knew."""
        return unpack_block_keys(self.frames[3]) if len(self.frames) > 3 else []


class WaitingRoom:
    """Owner of the submissions that wait; one attempt of a request at a time."""

    def __init__(self) -> None:
        self._waiting: dict[RequestId, Submission] = {}
        self._num_bytes = 0

    def __iter__(self) -> Iterator[Submission]:
        return iter(self._waiting.values())

    def __len__(self) -> int:
        return len(self._waiting)

    def has_place_for(self, submission: Submission) -> bool:
        """Whether the limits allow one more."""
        return len(self._waiting) < MAX_WAITING and self._num_bytes + submission.num_bytes <= MAX_WAITING_BYTES

    def add(self, submission: Submission) -> None:
        """Lets a submission wait. There must be a place, and its request must not wait yet."""
        assert self.has_place_for(submission)
        assert submission.request.request_id not in self._waiting
        self._waiting[submission.request.request_id] = submission
        self._num_bytes += submission.num_bytes

    def find(self, request_id: RequestId) -> Submission | None:
        """The submission of a request."""
        return self._waiting.get(request_id)

    def remove(self, submission: Submission) -> None:
        """This one waits no longer."""
        del self._waiting[submission.request.request_id]
        self._num_bytes -= submission.num_bytes

    def remove_client(self, client: Identity) -> None:
        """This API server is gone."""
        for submission in [each for each in self._waiting.values() if each.client.identity == client]:
            self.remove(submission)

    def take_all(self) -> list[Submission]:
        """Empties the room, first come first."""
        submissions = list(self._waiting.values())
        self._waiting.clear()
        self._num_bytes = 0
        return submissions

    def check_invariants(self) -> None:
        """Raises AssertionError when the sums are wrong or a limit is broken."""
        assert self._num_bytes == sum(each.num_bytes for each in self._waiting.values()) <= MAX_WAITING_BYTES
        assert len(self._waiting) <= MAX_WAITING
        assert all(request_id == each.request.request_id for request_id, each in self._waiting.items())
