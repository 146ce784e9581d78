"""The engine core's decisions: events in, outputs and plans out."""

from array import array

import pytest
from token_device import TokenDevice

from engine_core.core import DRAIN_SETTLE_S, SHUT_DOWN, EngineCore
from engine_core.events import (
    ClientsChanged,
    ClientStuck,
    CoordinatorRefused,
    CoordinatorWelcomed,
    DrainRequested,
    RequestArrived,
    RequestInvalid,
    RequestsAborted,
)
from engine_core.request_table import OutputsByClient
from engine_core.scheduler import Scheduler
from engine_core.scheduler_limits import SchedulerLimits
from protocol.exit_codes import ExitCode
from protocol.identifiers import ClientIndex, RequestId
from protocol.messages import ClientAddress, EngineCoreRequest, FinishReason, RequestKey
from protocol.sampling import SamplingParams

LIMITS = SchedulerLimits(
    max_num_seqs=2, max_num_batched_tokens=16, max_model_len=200, kv_capacity_tokens=512, pool_lengths=(256,)
)


def request(name: str, client: int = 0) -> EngineCoreRequest:
    sampling = SamplingParams(max_tokens=3)
    return EngineCoreRequest(RequestId(name), ClientIndex(client), 0, "m", 2, sampling, arrival_time_s=0.0)


def arrived(name: str, client: int = 0) -> RequestArrived:
    return RequestArrived(request(name, client), array("I", [1, 2]))


@pytest.fixture
def core() -> EngineCore:
    core = EngineCore(Scheduler(LIMITS, [99]), drain_timeout_s=5.0)
    core.handle(
        ClientsChanged(
            {
                ClientIndex(0): ClientAddress(ClientIndex(0), "ipc:///a"),
                ClientIndex(1): ClientAddress(ClientIndex(1), "ipc:///b"),
            }
        ),
        0.0,
    )
    return core


@pytest.fixture
def device() -> TokenDevice:
    return TokenDevice(
        LIMITS.kv_capacity_tokens, LIMITS.max_num_seqs, LIMITS.max_num_batched_tokens, LIMITS.pool_lengths
    )


def step(core: EngineCore, device: TokenDevice, now_s: float = 0.0) -> OutputsByClient:
    plan = core.plan()
    assert plan is not None
    outputs = core.complete(device.run(plan), now_s)
    core.check_invariants()
    return outputs


def keys(*names: str) -> list[RequestKey]:
    return [RequestKey(RequestId(name)) for name in names]


def test_without_requests_there_is_no_plan_and_no_reason_to_wake(core: EngineCore) -> None:
    assert core.plan() is None
    assert core.idle_timeout_s(0.0, 0.0) is None


def test_a_request_runs_to_its_end(core: EngineCore, device: TokenDevice) -> None:
    assert core.handle(arrived("a"), 0.0) == {}
    outputs = [step(core, device)[ClientIndex(0)][0] for _ in range(3)]
    assert [output.position for output in outputs] == [0, 1, 2]
    assert core.take_status().ended == keys("a")
    assert core.take_status().ended == []


def test_an_invalid_request_is_answered_at_once(core: EngineCore) -> None:
    [output] = core.handle(RequestInvalid(request("a", 1), "no such token"), 0.0)[ClientIndex(1)]
    assert (output.finish_reason, output.error) == (FinishReason.ERROR, "no such token")
    assert core.take_status().ended == keys("a")
    assert core.plan() is None


def test_an_aborted_request_is_not_planned_any_more(core: EngineCore, device: TokenDevice) -> None:
    core.handle(arrived("a"), 0.0)
    step(core, device)
    core.handle(RequestsAborted(keys("a")), 0.0)
    plan = core.plan()
    assert plan is not None
    assert (plan.releases, plan.prefills, plan.decodes) == ([0], [], [])


@pytest.mark.parametrize(
    "addresses",
    [
        {ClientIndex(0): ClientAddress(ClientIndex(0), "ipc:///a")},
        {
            ClientIndex(0): ClientAddress(ClientIndex(0), "ipc:///a"),
            ClientIndex(1): ClientAddress(ClientIndex(1), "ipc:///another-with-its-number"),
        },
    ],
)
def test_requests_of_an_api_server_that_left_are_dropped(
    core: EngineCore, addresses: dict[ClientIndex, ClientAddress]
) -> None:
    core.handle(arrived("a"), 0.0)
    core.handle(arrived("b", 1), 0.0)
    core.handle(ClientsChanged(addresses), 0.0)
    assert core.take_status().ended == keys("b")


def test_a_newcomer_among_the_api_servers_costs_nobody_anything(core: EngineCore) -> None:
    core.handle(arrived("a"), 0.0)
    core.handle(arrived("b", 1), 0.0)
    clients = {
        ClientIndex(0): ClientAddress(ClientIndex(0), "ipc:///a"),
        ClientIndex(1): ClientAddress(ClientIndex(1), "ipc:///b"),
        ClientIndex(2): ClientAddress(ClientIndex(2), "ipc:///c"),
    }
    core.handle(ClientsChanged(clients), 0.0)
    assert core.take_status().ended == []


def test_requests_of_an_api_server_that_is_stuck_are_dropped(core: EngineCore) -> None:
    core.handle(arrived("a"), 0.0)
    core.handle(arrived("b", 1), 0.0)
    core.handle(ClientStuck(ClientIndex(1)), 0.0)
    assert core.take_status().ended == keys("b")


def test_what_has_been_handled_is_counted_from_each_welcome(core: EngineCore) -> None:
    core.handle(arrived("early"), 0.0)
    core.handle(CoordinatorWelcomed(1), 0.0)
    assert (core.take_status().welcome, core.take_status().adds_handled) == (1, 0)
    core.handle(arrived("a"), 0.0)
    core.handle(arrived("a"), 0.0)
    core.handle(RequestInvalid(request("b"), "no"), 0.0)
    assert core.take_status().adds_handled == 3
    core.handle(CoordinatorWelcomed(2), 0.0)
    assert (core.take_status().welcome, core.take_status().adds_handled) == (2, 0)


def test_progress_counts_from_the_last_step_or_from_when_work_came(core: EngineCore, device: TokenDevice) -> None:
    core.handle(arrived("a"), 10.0)
    assert core.take_status().progressed_s == 10.0
    core.handle(arrived("b"), 12.0)
    assert core.take_status().progressed_s == 10.0
    step(core, device, 13.0)
    assert core.take_status().progressed_s == 13.0


def test_a_refusal_ends_the_process(core: EngineCore) -> None:
    assert core.exit_code is None
    core.handle(CoordinatorRefused("versions differ"), 0.0)
    assert core.exit_code == ExitCode.HOPELESS


def test_a_drain_waits_for_running_requests_and_still_takes_a_late_one(core: EngineCore, device: TokenDevice) -> None:
    core.handle(arrived("a"), 0.0)
    core.handle(DrainRequested(), 1.0)
    assert core.take_status().load.draining
    core.handle(arrived("late"), 1.1)
    for now_s in (2.0, 2.1, 2.2):
        assert core.tick(now_s, 0.0) == {}
        assert core.exit_code is None
        step(core, device, now_s)
    core.tick(2.3, 0.0)
    assert core.exit_code == ExitCode.DRAINED
    assert core.take_status().ended == keys("a", "late")


def test_an_idle_drain_stays_for_what_is_on_its_way(core: EngineCore) -> None:
    core.handle(DrainRequested(), 1.0)
    core.tick(1.0, 0.0)
    assert core.exit_code is None
    assert core.idle_timeout_s(1.0, 0.0) == pytest.approx(DRAIN_SETTLE_S)
    core.tick(1.0 + DRAIN_SETTLE_S, 0.0)
    assert core.exit_code == ExitCode.DRAINED


def test_what_is_left_at_the_drain_deadline_is_told_so(core: EngineCore, device: TokenDevice) -> None:
    core.handle(arrived("a"), 0.0)
    core.handle(arrived("b", 1), 0.0)
    step(core, device)
    core.handle(DrainRequested(), 1.0)
    core.handle(DrainRequested(), 5.9)  # a second request does not move the deadline
    assert core.tick(5.9, 0.0) == {}
    outputs = core.tick(6.0, 0.0)
    assert core.exit_code == ExitCode.DRAINED
    for client in (ClientIndex(0), ClientIndex(1)):
        [output] = outputs[client]
        assert (output.finish_reason, output.error, output.position) == (FinishReason.ABORT, SHUT_DOWN, 1)
