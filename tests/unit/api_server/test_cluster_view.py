"""Snapshots, updates, gaps."""

from hypothesis import given
from hypothesis import strategies as st

from api_server.cluster_view import ClusterView
from protocol.identifiers import EngineIndex, Incarnation
from protocol.messages import ClusterSnapshot, EngineState, EngineUpdate, Load, ModelInfo

FIRST = Incarnation("coordinator-1")


def engine(index: int, running: int = 0, draining: bool = False, card: str = "c0") -> EngineState:
    model = ModelInfo("tiny", card, 64)
    load = Load(running=running, draining=draining)
    return EngineState(EngineIndex(index), f"engine-{index}", Incarnation(f"e{index}"), model, load)


def snapshot(sequence: int, *engines: EngineState, incarnation: Incarnation = FIRST) -> ClusterSnapshot:
    return ClusterSnapshot(sequence, incarnation, list(engines), malformed_total=sequence)


def running(view: ClusterView) -> list[int]:
    return [engine.load.running for engine in view.engines]


def test_a_snapshot_is_wanted_until_one_comes() -> None:
    view = ClusterView()
    assert view.wants_snapshot
    view.take_update(EngineUpdate(0, engine(0)))
    assert view.engines == []
    view.take_snapshot(snapshot(4, engine(1), engine(0)))
    assert not view.wants_snapshot
    assert [each.index for each in view.engines] == [0, 1]
    assert view.malformed_total == 4


def test_updates_in_order_are_taken() -> None:
    view = ClusterView()
    view.take_snapshot(snapshot(4, engine(0), engine(1)))
    view.take_update(EngineUpdate(5, engine(0, running=1)))
    view.take_update(EngineUpdate(6, engine(1, running=2)))
    assert running(view) == [1, 2]


def test_a_gap_freezes_the_view_until_the_next_snapshot() -> None:
    view = ClusterView()
    view.take_snapshot(snapshot(4, engine(0)))
    view.take_update(EngineUpdate(6, engine(0, running=1)))
    assert view.wants_snapshot
    view.take_update(EngineUpdate(7, engine(0, running=2)))
    assert running(view) == [0]
    view.take_snapshot(snapshot(8, engine(0, running=3)))
    assert not view.wants_snapshot
    assert running(view) == [3]


def test_an_update_of_an_unknown_engine_core_is_a_loss() -> None:
    view = ClusterView()
    view.take_snapshot(snapshot(4, engine(0)))
    view.take_update(EngineUpdate(5, engine(3)))
    assert view.wants_snapshot


def test_what_is_older_than_known_is_passed_over() -> None:
    view = ClusterView()
    view.take_snapshot(snapshot(4, engine(0, running=1)))
    view.take_update(EngineUpdate(4, engine(0, running=9)))
    view.take_snapshot(snapshot(3, engine(0, running=9)))
    assert running(view) == [1]
    assert not view.wants_snapshot


def test_a_new_coordinator_counts_anew() -> None:
    view = ClusterView()
    view.take_snapshot(snapshot(40, engine(0)))
    view.take_snapshot(snapshot(1, engine(0, running=1), incarnation=Incarnation("coordinator-2")))
    assert running(view) == [1]
    view.take_update(EngineUpdate(2, engine(0, running=2)))
    assert running(view) == [2]


def test_draining_engine_cores_need_their_card_but_do_not_serve() -> None:
    view = ClusterView()
    view.take_snapshot(snapshot(1, engine(0, draining=True, card="old"), engine(1, card="new")))
    assert view.card_hashes() == {"old", "new"}
    assert view.serving_card_hashes() == {"new"}


@given(st.lists(st.tuples(st.booleans(), st.integers(0, 12), st.integers(0, 2)), max_size=30))
def test_the_view_is_never_ahead_of_a_loss(events: list[tuple[bool, int, int]]) -> None:
    """Each message carries its own number as load: what is shown of an engine core is what was last published of it
    up to the view's sequence, or the view knows that it wants a snapshot."""
    view = ClusterView()
    for is_snapshot, sequence, index in events:
        if is_snapshot:
            view.take_snapshot(snapshot(sequence, engine(0, sequence), engine(1, sequence)))
        else:
            before, was_waiting = running(view), view.wants_snapshot
            view.take_update(EngineUpdate(sequence, engine(index, sequence)))
            if was_waiting or view.wants_snapshot:
                assert running(view) == before
        view.check_invariants()
