"""Where the busy loop leaves its newest status for the input thread: one slot, so that nothing can pile up."""

import threading
from collections.abc import Callable

import msgspec

from engine_core.events import CoreStatus
from protocol.messages import Load


class StatusBoard:
    """Shared by two threads: the busy loop publishes, the input thread takes."""

    def __init__(self, ring: Callable[[], None]) -> None:
        """`ring` wakes the input thread; it is called in the busy loop's thread, and only for what cannot wait."""
        self._ring = ring
        self._lock = threading.Lock()
        self._status: CoreStatus | None = None
        self._closed = False

    def publish(self, status: CoreStatus) -> None:
        """Replaces the status; requests that ended, and changes of blocks, that were not taken yet are kept."""
        with self._lock:
            earlier = self._status
            self._status = status if earlier is None else _joined(earlier, status)
        if status.ended or status.unreachable or earlier is None or is_news(earlier.load, status.load):
            self._ring()

    def take(self) -> CoreStatus | None:
        """The newest status, with all that ended or changed since the last take; None when there has not been any."""
        with self._lock:
            status = self._status
            if status is not None:
                self._status = msgspec.structs.replace(status, ended=[], blocks={}, unreachable=[])
            return status

    def close(self) -> None:
        """There will be no other status."""
        with self._lock:
            self._closed = True
        self._ring()

    @property
    def is_closed(self) -> bool:
        """Whether the status that is there is the last."""
        with self._lock:
            return self._closed


def _joined(earlier: CoreStatus, later: CoreStatus) -> CoreStatus:
    blocks = {**earlier.blocks, **later.blocks}
    unreachable = earlier.unreachable + later.unreachable
    return msgspec.structs.replace(later, ended=earlier.ended + later.ended, blocks=blocks, unreachable=unreachable)


def is_news(earlier: Load, later: Load) -> bool:
    """Whether the coordinator should know at once, and not with the next heartbeat."""
    return _what_routing_needs(earlier) != _what_routing_needs(later)


def _what_routing_needs(load: Load) -> tuple[int, int, int, bool]:
    return load.running, load.waiting, load.queued_prefill_tokens, load.draining
