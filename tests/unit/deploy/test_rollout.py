"""In which order a running cluster is changed."""

import pytest

from deploy.control_messages import ControlRequest, Drain, RestartRolling, Scale
from deploy.rollout import Add, CannotChange, End, Phase, Rollout, new_names, plan
from deploy.supervised_process import ProcessState, Role

CLUSTER = {
    "coordinator": Role.COORDINATOR,
    "engine-0": Role.ENGINE_CORE,
    "engine-1": Role.ENGINE_CORE,
    "api-0": Role.API_SERVER,
    "api-1": Role.API_SERVER,
}


def test_drain_ends_one_process_for_good() -> None:
    assert plan(Drain("engine-1"), CLUSTER) == [Phase(end=("engine-1",))]


@pytest.mark.parametrize(
    ("name", "processes", "words"),
    [
        ("engine-7", CLUSTER, "no process 'engine-7'; there are api-0, api-1, coordinator, engine-0, engine-1"),
        ("coordinator", CLUSTER, "coordinator cannot be drained"),
        ("api-0", {"api-0": Role.API_SERVER, "engine-0": Role.ENGINE_CORE}, "only API server"),
    ],
)
def test_what_cannot_be_drained_is_said(name: str, processes: dict[str, Role], words: str) -> None:
    with pytest.raises(CannotChange, match=words):
        plan(Drain(name), processes)


def test_a_rolling_restart_takes_one_after_the_other_and_api_servers_have_successors() -> None:
    assert plan(RestartRolling(), CLUSTER) == [
        Phase(end=("engine-0",), returns=True),
        Phase(end=("engine-1",), returns=True),
        Phase((("api-2", Role.API_SERVER),), ("api-0",)),
        Phase((("api-0", Role.API_SERVER),), ("api-1",)),
        Phase(end=("coordinator",), returns=True),
    ]


@pytest.mark.parametrize(
    ("request_", "phases"),
    [
        (Scale(engines=4), [Phase((("engine-2", Role.ENGINE_CORE), ("engine-3", Role.ENGINE_CORE)))]),
        (Scale(engines=1), [Phase(end=("engine-1",))]),
        (Scale(engines=3, api_servers=1), [Phase((("engine-2", Role.ENGINE_CORE),)), Phase(end=("api-1",))]),
        (Scale(engines=2, api_servers=2), []),
        (Scale(api_servers=3), [Phase((("api-2", Role.API_SERVER),))]),
    ],
)
def test_scaling_starts_what_is_missing_before_it_ends_what_is_too_many(
    request_: ControlRequest, phases: list[Phase]
) -> None:
    assert plan(request_, CLUSTER) == phases


def test_free_names_are_taken_again_and_the_highest_numbers_go_first() -> None:
    engines = {f"engine-{number}": Role.ENGINE_CORE for number in (1, 2, 9, 10)}
    assert new_names(engines, Role.ENGINE_CORE, 3) == ["engine-0", "engine-3", "engine-4"]
    assert plan(Scale(engines=2), engines) == [Phase(end=("engine-9", "engine-10"))]


def test_a_phase_ends_nothing_before_what_it_starts_is_ready_and_waits_for_both() -> None:
    states: dict[str, ProcessState] = {"api-0": ProcessState.READY}
    rollout = Rollout([Phase((("api-1", Role.API_SERVER),), ("api-0",)), Phase(end=("api-1",), returns=True)], 5)
    assert rollout.advance(states.get) == [Add("api-1", Role.API_SERVER)]
    states["api-1"] = ProcessState.STARTING
    assert rollout.advance(states.get) == []
    assert rollout.waits_for("api-1") and not rollout.waits_for("engine-0")
    states["api-1"] = ProcessState.READY
    assert rollout.advance(states.get) == [End("api-0", returns=False)]
    states["api-0"] = ProcessState.ENDING
    assert rollout.advance(states.get) == []
    del states["api-0"]
    assert rollout.advance(states.get) == [End("api-1", returns=True)]
    for state in (ProcessState.ENDING, ProcessState.BACKING_OFF, ProcessState.STARTING):
        states["api-1"] = state
        assert rollout.advance(states.get) == [] and not rollout.is_done
    states["api-1"] = ProcessState.READY
    assert rollout.advance(states.get) == [] and rollout.is_done


def test_no_phases_are_done_at_once() -> None:
    rollout = Rollout([], 1)
    assert rollout.is_done and rollout.advance({}.get) == []
