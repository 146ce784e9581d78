"""The main thread's loop: events from the inbox, plans to the device, outputs to the output thread.

The only code that calls the device. It blocks while there is nothing to do, and takes what has arrived between two
steps, so that an abort takes effect within one step.
"""

import queue
import time

from engine_core.core import EngineCore
from engine_core.device import Device, StepPlan
from engine_core.events import CoreEvent
from engine_core.output_thread import OutputEvent, StepOutputs
from engine_core.scheduler import OutputsByClient
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
    ) -> None:
        self._core = core
        self._device = device
        self._inbox = inbox
        self._outputs = outputs
        self._board = board

    def run(self) -> int:
        """Returns the exit code. Raises what the device raises: its state cannot be trusted then."""
        while self._core.exit_code is None:
            self._take_events()
            self._send(self._core.tick(time.monotonic(), wall_clock_s()))
            plan = self._core.plan()
            self._board.publish(self._core.take_status())
            if plan is not None:
                self._run(plan)
        self._board.publish(self._core.take_status())
        return self._core.exit_code

    def _run(self, plan: StepPlan) -> None:
        started_s = time.monotonic()
        sampled = self._device.run(plan)
        ended_s = time.monotonic()
        self._send(self._core.complete(sampled, ended_s - started_s, ended_s))

    def _take_events(self) -> None:
        if not self._core.has_work:
            try:
                event = self._inbox.get(timeout=self._core.idle_timeout_s(time.monotonic()))
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
