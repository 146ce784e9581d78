"""What the busy loop decides: events in, outputs out, plans for the device between. No clock, no thread, no socket.

Draining: new requests are still taken (the coordinator learns from the load that none are wanted, but one may be on
its way), until all have ended or the time is up; what is left then ends with FinishReason.ABORT.
"""

from typing import assert_never

import msgspec

from engine_core.device import StepPlan
from engine_core.events import (
    ClientsChanged,
    ClientStuck,
    CoordinatorRefused,
    CoordinatorWelcomed,
    CoreEvent,
    CoreStatus,
    DrainRequested,
    RequestArrived,
    RequestInvalid,
    RequestsAborted,
)
from engine_core.scheduler import OutputsByClient, Scheduler
from protocol.exit_codes import ExitCode
from protocol.identifiers import ClientIndex
from protocol.messages import ClientAddress

DRAIN_SETTLE_S = 0.2
"""A draining engine core stays at least this long: what the coordinator sent before it heard of it still arrives."""
SHUT_DOWN = "engine core shut down"
"""Error text of the requests that a shutdown ends."""


class EngineCore:
    """Owner of the scheduler, and of when this process has done its work."""

    def __init__(self, scheduler: Scheduler, drain_timeout_s: float) -> None:
        self._scheduler = scheduler
        self._drain_timeout_s = drain_timeout_s
        self._clients: dict[ClientIndex, ClientAddress] = {}
        self._welcome = 0
        self._adds_handled = 0
        self._progressed_s = 0.0
        self._settled_s: float | None = None
        """While draining: from when on it may end; else None."""
        self._drain_deadline_s = 0.0
        self._exit_code: int | None = None

    @property
    def exit_code(self) -> int | None:
        """How the process shall end; None while it shall go on."""
        return self._exit_code

    @property
    def has_work(self) -> bool:
        """Whether a plan is wanted now."""
        return self._scheduler.has_work

    def idle_timeout_s(self, now_s: float) -> float | None:
        """How long to wait for an event when there is no work; None for as long as it takes."""
        return None if self._settled_s is None else max(0.0, self._settled_s - now_s)

    def handle(self, event: CoreEvent, now_s: float) -> OutputsByClient:
        """Takes one event; returns outputs that it causes at once."""
        if not self._scheduler.has_work:
            self._progressed_s = now_s
        match event:
            case RequestArrived(request, prompt, chain):
                self._adds_handled += 1
                return self._scheduler.add(request, prompt, chain)
            case RequestInvalid(request, error):
                self._adds_handled += 1
                return self._scheduler.refuse(request, error)
            case RequestsAborted(keys):
                self._scheduler.abort(keys)
            case ClientsChanged(addresses):
                self._take_clients(addresses)
            case ClientStuck(client_index):
                self._scheduler.drop_client(client_index)
            case CoordinatorWelcomed(welcome):
                self._welcome, self._adds_handled = welcome, 0
            case CoordinatorRefused():
                self._exit_code = ExitCode.HOPELESS
            case DrainRequested():
                self._start_drain(now_s)
            case _:
                assert_never(event)
        return {}

    def tick(self, now_s: float) -> OutputsByClient:
        """Time has passed: ends a drain that is done or out of time."""
        outputs: OutputsByClient = {}
        if self._settled_s is not None:
            if now_s >= self._drain_deadline_s:
                outputs = self._scheduler.end_all(SHUT_DOWN)
            if now_s >= self._settled_s and not self._scheduler.has_requests:
                self._exit_code = ExitCode.DRAINED
        return outputs

    def plan(self) -> StepPlan | None:
        """The next step for the device; None when there is none."""
        return self._scheduler.plan() if self._scheduler.has_work else None

    def complete(self, sampled: list[int], elapsed_s: float, now_s: float) -> OutputsByClient:
        """The planned step was run, which took `elapsed_s`, and gave these tokens."""
        self._progressed_s = now_s
        return self._scheduler.update(sampled, elapsed_s)

    def take_status(self) -> CoreStatus:
        """Where it stands, with the requests that ended since this was last asked."""
        load = msgspec.structs.replace(self._scheduler.load(), draining=self._settled_s is not None)
        return CoreStatus(load, self._scheduler.take_ended(), self._adds_handled, self._welcome, self._progressed_s)

    def check_invariants(self) -> None:
        """Raises AssertionError when the state contradicts itself."""
        self._scheduler.check_invariants()
        assert self._exit_code != ExitCode.DRAINED or not self._scheduler.has_requests

    def _take_clients(self, addresses: dict[ClientIndex, ClientAddress]) -> None:
        for client_index, address in self._clients.items():
            if addresses.get(client_index) != address:
                self._scheduler.drop_client(client_index)
        self._clients = addresses

    def _start_drain(self, now_s: float) -> None:
        if self._settled_s is None:
            self._settled_s = now_s + DRAIN_SETTLE_S
            self._drain_deadline_s = now_s + self._drain_timeout_s
