"""The main thread's loop: events from the inbox, plans to the device, outputs to the output thread.

The only code that calls the device. It takes what has arrived between two steps, so that an abort takes effect within
one step, or two with lookahead: then a plan is submitted before the result of the one before it is taken, and the host
does its part while the device computes. Not so where submitting takes as long as the step and the result to come is a
first token or an end: it would be told a step later. It blocks on the inbox when nothing is planned and no result is to
come.
"""

import queue
import threading
import time

from engine_core.core import EngineCore
from engine_core.device import Device
from engine_core.events import CoreEvent
from engine_core.output_thread import OutputEvent, StepOutputs
from engine_core.request_table import OutputsByClient
from engine_core.ssd_thread import SsdThread
from engine_core.status_board import StatusBoard
from protocol.messages import wall_clock_s


class BusyLoop:
    """Runs until the core says that the process shall end."""

    def __init__(
        self,
        core: EngineCore,
        device: Device,
        inbox: "queue.SimpleQueue[CoreEvent]",
        outputs: "queue.SimpleQueue[OutputEvent]",
        board: StatusBoard,
        ssd: SsdThread | None = None,
        *,
        lookahead: bool,
    ) -> None:
        """`ssd` is where the core's reads and writes of blocks go, if it has any."""
        self._core = core
        self._device = device
        self._inbox = inbox
        self._outputs = outputs
        self._board = board
        self._ssd = ssd
        self._most_ahead = int(lookahead)
        """Plans that may be without a result when another is made."""
        self._in_flight = 0
        """Plans without a result."""
        self._is_idle = True

    def run(self) -> int:
        """Returns the exit code. Raises what the device raises: its state cannot be trusted then."""
        while self._core.exit_code is None:
            if self._in_flight and self._device.submit_blocks and self._core.is_result_awaited:
                self._collect()
            self._take_events()
            self._send(self._core.tick(time.monotonic(), wall_clock_s()))
            submitted = self._submit()
            self._board.publish(self._core.take_status())
            self._is_idle = not submitted and not self._in_flight
            if self._in_flight and (not submitted or self._in_flight > self._most_ahead):
                self._collect()
        self._board.publish(self._core.take_status())
        return self._core.exit_code

    def _submit(self) -> bool:
        plan = self._core.plan()
        self._read_blocks()
        if plan is None:
            return False
        self._device.submit(plan)
        self._in_flight += 1
        return True

    def _collect(self) -> None:
        result = self._device.collect()
        self._in_flight -= 1
        self._send(self._core.complete(result, time.monotonic()))
        if self._ssd is not None:
            for write in self._core.take_writes():
                self._ssd.write(write, self._device.read_block(write.block_id))

    def _read_blocks(self) -> None:
        if self._ssd is not None:
            for read in self._core.take_reads(time.monotonic()):
                self._ssd.read(read)

    def _take_events(self) -> None:
        if self._is_idle:
            try:
                timeout_s = self._core.idle_timeout_s(time.monotonic(), wall_clock_s())
                event = self._inbox.get(timeout=None if timeout_s is None else min(timeout_s, threading.TIMEOUT_MAX))
            except queue.Empty:
                return
            self._handle(event)
        for _ in range(self._inbox.qsize()):
            self._handle(self._inbox.get())

    def _handle(self, event: CoreEvent) -> None:
        self._send(self._core.handle(event, time.monotonic()))

    def _send(self, outputs: OutputsByClient) -> None:
        if outputs:
            self._outputs.put(StepOutputs(outputs, wall_clock_s()))
