"""The thread of the SSD tier: reads and writes blocks, off the busy loop.

Reads go first: requests wait for them, for writes nobody does. Blocks that wait to be written keep their memory, which
is no part of the KV cache's budget: so they are few, and what comes while there are too many is not written.
"""

import logging
import queue
import threading
from collections.abc import Callable
from itertools import count

from engine_core.block_folder import BlockFolder
from engine_core.device import BlockData
from engine_core.ssd_tier import BlockRead, BlocksRead, BlockWrite, ReadBlock, SsdReport

logger = logging.getLogger("shoal.engine_core")

MAX_UNWRITTEN_BYTES = 256 * 1024 * 1024
"""Of blocks that wait to be written: 87 blocks of SmolLM2-135M in float32, 32 of an 8B model in bfloat16."""
WRITES_PER_REPORT = 32
"""While there is more to do; when all is done it is reported at once."""

_END, _READ, _WRITE = range(3)
_Order = BlockRead | tuple[BlockWrite, BlockData] | None


class SsdThread:
    """Made by the main thread, whose busy loop calls `read`, `write` and `close`; `run` in a thread of its own."""

    name = "ssd"

    def __init__(self, folder: BlockFolder, on_event: Callable[[BlocksRead | SsdReport], None]) -> None:
        """`on_event` is called in this thread."""
        self._folder = folder
        self._on_event = on_event
        self._orders: queue.PriorityQueue[tuple[int, int, _Order]] = queue.PriorityQueue()
        self._numbers = count()
        self._lock = threading.Lock()
        self._unwritten_bytes = 0
        self._skipped_total = 0
        self._written_total = 0
        self._unreported = 0
        self._has_complained = False

    def read(self, read: BlockRead) -> None:
        """BlocksRead follows, whatever happens."""
        self._orders.put((_READ, next(self._numbers), read))

    def write(self, write: BlockWrite, data: BlockData) -> None:
        """As soon as there is time; not at all when too much waits already."""
        nbytes = sum(part.nbytes for part in data)
        with self._lock:
            has_room = self._unwritten_bytes + nbytes <= MAX_UNWRITTEN_BYTES
            if has_room:
                self._unwritten_bytes += nbytes
            else:
                self._skipped_total += 1
        if has_room:
            self._orders.put((_WRITE, next(self._numbers), (write, data)))

    def close(self) -> None:
        """`run` returns after what it is doing now; what else waits to be written is not."""
        self._orders.put((_END, next(self._numbers), None))

    def run(self) -> None:
        """Until `close`."""
        self._try(self._folder.open)
        self._report()
        while True:
            _, _, order = self._orders.get()
            match order:
                case None:
                    return
                case BlockRead():
                    self._on_event(BlocksRead(order, self._read(order)))
                case (write, data):
                    self._write(write, data)
            self._unreported += 1
            if self._unreported >= WRITES_PER_REPORT or self._orders.empty():
                self._report()

    def _read(self, read: BlockRead) -> list[ReadBlock]:
        blocks: list[ReadBlock] = []
        parent = read.parent
        for block_hash in read.hashes:
            try:
                block = self._folder.read(block_hash, parent)
            except OSError as error:
                self._complain(error)
                break
            if block is None:
                break
            blocks.append(block)
            parent = block_hash
        return blocks

    def _write(self, write: BlockWrite, data: BlockData) -> None:
        is_written = self._try(lambda: self._folder.write(write, data))
        with self._lock:
            self._unwritten_bytes -= sum(part.nbytes for part in data)
            self._written_total += is_written
            self._skipped_total += not is_written

    def _try(self, work: Callable[[], None]) -> bool:
        try:
            work()
        except OSError as error:
            self._complain(error)
            return False
        self._has_complained = False
        return True

    def _complain(self, error: OSError) -> None:
        """Once, until it works again: a full disk is met with each block."""
        if not self._has_complained:
            self._has_complained = True
            logger.warning("SSD cache: %s", error)

    def _report(self) -> None:
        self._unreported = 0
        added, removed = self._folder.take_changes()
        with self._lock:
            written, skipped = self._written_total, self._skipped_total
        self._on_event(SsdReport(added, removed, self._folder.nbytes, written, skipped, self._folder.damaged_total))
