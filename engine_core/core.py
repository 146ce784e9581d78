"""What the busy loop decides: events in, outputs out, plans for the device between. No clock, no thread, no socket.

Draining: new requests are still taken (the coordinator learns from the load that none are wanted, but one may be on
its way), until all have ended or the time is up; what is left then ends with FinishReason.ABORT.
"""

import math
from typing import assert_never

import msgspec

from engine_core.deadlines import Deadlines
from engine_core.device import StepPlan, StepResult
from engine_core.events import (
    ClientsChanged,
    ClientStuck,
    CoordinatorRefused,
    CoordinatorWelcomed,
    CoreEvent,
    CoreStatus,
    DrainRequested,
    GrammarCompiled,
    GrammarDenied,
    RequestArrived,
    RequestInvalid,
    RequestsAborted,
)
from engine_core.request_table import OutputsByClient, joined
from engine_core.scheduler import Scheduler
from engine_core.ssd_tier import BlockRead, BlocksRead, BlockWrite, SsdReport, SsdTier
from protocol.exit_codes import ExitCode
from protocol.identifiers import ClientIndex
from protocol.messages import ClientAddress

DRAIN_SETTLE_S = 0.2
"""A draining engine core stays at least this long: what the coordinator sent before it heard of it still arrives."""
SHUT_DOWN = "engine core shut down"
"""Error text of the requests that a shutdown ends."""


class EngineCore:
    """Owner of the scheduler, and of when this process has done its work."""

    def __init__(self, scheduler: Scheduler, drain_timeout_s: float, ssd: SsdTier | None = None) -> None:
        """`ssd` is the scheduler's, if it has one."""
        self._scheduler = scheduler
        self._ssd = ssd
        self._deadlines = Deadlines()
        self._drain_timeout_s = drain_timeout_s
        self._clients: dict[ClientIndex, ClientAddress] = {}
        self._unreachable: list[ClientIndex] = []
        """API servers found stuck since the last status."""
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

    def idle_timeout_s(self, now_s: float, wall_s: float) -> float | None:
        """How long to wait for an event when nothing is planned or in flight; None for as long as it takes.

        Requests may be there all the same: they wait for the SSD or for their grammar, and have deadlines.
        """
        waits = [self._deadlines.next_s - wall_s]
        reads_s = None if self._ssd is None else self._ssd.deadline_s
        waits += [due_s - now_s for due_s in (self._next_drain_s(now_s), reads_s) if due_s is not None]
        wait_s = min(waits)
        return None if wait_s == math.inf else max(0.0, wait_s)

    def _next_drain_s(self, now_s: float) -> float | None:
        if self._settled_s is None:
            return None
        return self._settled_s if now_s < self._settled_s else self._drain_deadline_s

    def handle(self, event: CoreEvent, now_s: float) -> OutputsByClient:
        """Takes one event; returns outputs that it causes at once."""
        if not self._scheduler.has_work:
            self._progressed_s = now_s
        match event:
            case RequestArrived(request, prompt, chain):
                self._adds_handled += 1
                self._deadlines.add(request.key, request.deadline_s)
                return self._scheduler.add(request, prompt, chain)
            case RequestInvalid(request, error):
                self._adds_handled += 1
                return self._scheduler.refuse(request, error)
            case GrammarCompiled(key, grammar):
                self._scheduler.grammar_compiled(key, grammar)
            case GrammarDenied(key, error, is_own_fault):
                return self._scheduler.grammar_denied(key, error, blames_caller=not is_own_fault)
            case RequestsAborted(keys):
                self._scheduler.abort(keys)
            case ClientsChanged(addresses):
                self._take_clients(addresses)
            case ClientStuck(client_index):
                self._scheduler.drop_client(client_index)
                self._unreachable.append(client_index)
            case CoordinatorWelcomed(welcome):
                self._welcome, self._adds_handled = welcome, 0
            case CoordinatorRefused():
                self._exit_code = ExitCode.HOPELESS
            case DrainRequested():
                self._start_drain(now_s)
            case BlocksRead():
                self._scheduler.blocks_read(event)
            case SsdReport():
                self._scheduler.ssd_reported(event)
            case _:
                assert_never(event)
        return {}

    def tick(self, now_s: float, wall_s: float) -> OutputsByClient:
        """Time has passed: ends requests whose deadline has, a drain that is done or out of time, and waits for the SSD
        that are too long.

        To be called between any two steps, and when `idle_timeout_s` is over.
        """
        if self._ssd is not None:
            self._ssd.expire(now_s)
        outputs = self._scheduler.time_out(self._deadlines.take_due(wall_s))
        if self._settled_s is not None:
            if now_s >= self._drain_deadline_s:
                outputs = joined(outputs, self._scheduler.end_all(SHUT_DOWN))
            if now_s >= self._settled_s and not self._scheduler.has_requests:
                self._exit_code = ExitCode.DRAINED
        return outputs

    def plan(self) -> StepPlan | None:
        """The next step for the device; None when there is none before a result or an event comes.

        At most one plan may be without a result when another is asked for.
        """
        return self._scheduler.plan() if self._scheduler.has_work else None

    @property
    def is_result_awaited(self) -> bool:
        """Whether the step that runs brings what somebody waits for, more than for its next token."""
        return self._scheduler.is_result_awaited

    def complete(self, result: StepResult, now_s: float) -> OutputsByClient:
        """What came of the oldest plan without a result."""
        self._progressed_s = now_s
        return self._scheduler.update(result)

    def take_reads(self, now_s: float) -> list[BlockRead]:
        """What the SSD's thread is to read: requests wait for it."""
        return [] if self._ssd is None else self._ssd.take_reads(now_s)

    def take_writes(self) -> list[BlockWrite]:
        """What the SSD's thread is to write, after `complete`; the device has it until the next plan is submitted."""
        return [] if self._ssd is None else self._ssd.take_writes()

    def take_status(self) -> CoreStatus:
        """Where it stands, with the requests that ended since this was last asked."""
        ssd = None if self._ssd is None else self._ssd.load()
        load = msgspec.structs.replace(self._scheduler.load(), draining=self._settled_s is not None, ssd=ssd)
        ended = self._scheduler.take_ended()
        self._deadlines.forget(ended)
        blocks = self._scheduler.take_block_changes()
        unreachable, self._unreachable = self._unreachable, []
        return CoreStatus(load, ended, self._adds_handled, self._welcome, self._progressed_s, blocks, unreachable)

    def check_invariants(self) -> None:
        """Raises AssertionError when the state contradicts itself."""
        self._scheduler.check_invariants()
        self._deadlines.check_invariants()
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
