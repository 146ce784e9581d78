"""The loop between inbox and device: in which order it plans, submits and collects, and that it never spins."""

import queue
from array import array

import pytest
from token_device import TokenDevice

from engine_core.busy_loop import BusyLoop
from engine_core.core import EngineCore
from engine_core.device import StepPlan, StepResult
from engine_core.events import ClientsChanged, CoordinatorRefused, CoreEvent, RequestArrived, RequestsAborted
from engine_core.output_thread import OutputEvent, StepOutputs
from engine_core.scheduler import Scheduler
from engine_core.scheduler_limits import SchedulerLimits
from engine_core.status_board import StatusBoard
from protocol.exit_codes import ExitCode
from protocol.identifiers import ClientIndex, RequestId
from protocol.messages import EngineCoreRequest, FinishReason, RequestKey
from protocol.sampling import SamplingParams

LIMITS = SchedulerLimits(
    max_num_seqs=4, max_num_batched_tokens=64, max_model_len=257, kv_capacity_tokens=1_024, pool_lengths=(256,)
)


class WatchedDevice(TokenDevice):
    """Notes its calls; after a given number of collects the coordinator says no, which ends the loop."""

    def __init__(self, inbox: "queue.SimpleQueue[CoreEvent]") -> None:
        super().__init__(LIMITS.kv_capacity_tokens, LIMITS.max_num_seqs, LIMITS.max_num_batched_tokens, (256,))
        self.inbox = inbox
        self.calls = ""
        self.events: dict[int, CoreEvent] = {}
        """What arrives while the how manieth result is waited for."""

    def submit(self, plan: StepPlan) -> None:
        self.calls += "s"
        super().submit(plan)

    def collect(self) -> StepResult:
        self.calls += "c"
        if event := self.events.get(self.calls.count("c")):
            self.inbox.put(event)
        return super().collect()


class CountingInbox(queue.SimpleQueue):  # type: ignore[type-arg]
    """Ends the loop when it would block: that is when it is idle."""

    blocked = 0

    def get(self, block: bool = True, timeout: float | None = None) -> CoreEvent:
        if self.empty():
            assert timeout is None
            self.blocked += 1
            return CoordinatorRefused("that is all")
        event: CoreEvent = super().get(block, timeout)
        return event


def arrived(name: str, max_tokens: int) -> RequestArrived:
    sampling = SamplingParams(max_tokens=max_tokens, ignore_eos=True)
    request = EngineCoreRequest(RequestId(name), ClientIndex(0), 0, "m", 2, sampling, arrival_time_s=0.0)
    return RequestArrived(request, array("I", [1, 2]))


class Loop:
    """A loop that has run until it was idle."""

    def __init__(
        self,
        *,
        lookahead: bool,
        later: dict[int, CoreEvent] | None = None,
        max_tokens: int = 4,
        submit_blocks: bool = False,
    ) -> None:
        inbox = CountingInbox()
        inbox.put(ClientsChanged({ClientIndex(0): "ipc:///a"}))
        inbox.put(arrived("a", max_tokens))
        self.device = WatchedDevice(inbox)
        self.device.events = later or {}
        self.device.submit_blocks = submit_blocks
        self.board = StatusBoard(lambda: None)
        outputs: queue.SimpleQueue[OutputEvent] = queue.SimpleQueue()
        core = EngineCore(Scheduler(LIMITS, []), drain_timeout_s=5.0)
        self.code = BusyLoop(core, self.device, inbox, outputs, self.board, lookahead=lookahead).run()
        self.blocked = inbox.blocked
        self.outputs = [output for outs in _step_outputs(outputs) for output in outs]

    def tokens(self, name: str) -> list[int]:
        return [token for o in self.outputs if o.request_id == name for token in o.token_ids]


def _step_outputs(outputs: "queue.SimpleQueue[OutputEvent]"):  # type: ignore[no-untyped-def]
    while not outputs.empty():
        event = outputs.get()
        assert isinstance(event, StepOutputs)
        yield from event.outputs.values()


def test_without_lookahead_each_step_is_collected_before_the_next() -> None:
    loop = Loop(lookahead=False)
    assert loop.device.calls == "sc" * 4 + "sc", "the last plan frees the row"
    assert [output.position for output in loop.outputs] == [0, 1, 2, 3]
    assert (loop.code, loop.blocked, loop.device.rows) == (ExitCode.HOPELESS, 1, {})


def test_with_lookahead_the_next_step_is_submitted_before_one_is_collected() -> None:
    loop = Loop(lookahead=True)
    assert loop.device.calls == "sscscsc" + "c" + "sc"
    assert loop.outputs[-1].finish_reason is FinishReason.LENGTH
    assert (loop.code, loop.blocked, loop.device.rows) == (ExitCode.HOPELESS, 1, {})


def test_where_submitting_takes_a_step_first_tokens_and_ends_are_told_before_the_next() -> None:
    loop = Loop(lookahead=True, submit_blocks=True)
    assert loop.device.calls == "sc" + "sscsc" + "c" + "sc"
    assert [output.position for output in loop.outputs] == [0, 1, 2, 3]


@pytest.mark.parametrize("lookahead", [False, True])
def test_what_arrives_while_a_step_runs_joins_the_next_plan(lookahead: bool) -> None:
    loop = Loop(lookahead=lookahead, later={2: arrived("b", 2)})
    assert len(loop.tokens("a")) == 4
    assert len(loop.tokens("b")) == 2
    assert loop.blocked == 1


@pytest.mark.parametrize("lookahead", [False, True])
def test_an_abort_while_steps_run_takes_effect_at_once(lookahead: bool) -> None:
    loop = Loop(lookahead=lookahead, max_tokens=100, later={3: RequestsAborted([RequestKey(RequestId("a"))])})
    assert len(loop.tokens("a")) == 3, "a result that comes later is dropped"
    assert loop.device.rows == {}
    status = loop.board.take()
    assert status is not None
    assert (status.ended, status.load.running) == ([RequestKey(RequestId("a"))], 0)
