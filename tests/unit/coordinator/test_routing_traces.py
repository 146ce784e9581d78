"""Conversations over four simulated engine cores against one with the same memory in all."""

import random

import pytest
from simulated_cluster import Cluster, Session

from coordinator.block_index import Match
from protocol.messages import RouteReason

SESSIONS, TURNS = 64, 8
TOTAL_BLOCKS = 6_000
"""Of 64 tokens: a good deal more than all conversations need at their ends, so that one engine core alone forgets
nothing, while a quarter of it holds no more than about a third of them."""


def sessions(shared_tokens: int, seed: int = 7) -> list[Session]:
    """Conversations that grow by 100 to 500 tokens a turn; all begin with the same `shared_tokens`."""
    rng = random.Random(seed)
    fresh = iter(range(1, 2**31))

    def tokens(count: int) -> list[int]:
        return [next(fresh) for _ in range(count)]

    beginning = tokens(shared_tokens)
    return [
        Session(
            f"s{number}",
            list(beginning),
            [(tokens(rng.randint(60, 400)), tokens(rng.randint(40, 100))) for _ in range(TURNS)],
            rng.uniform(0.5, 5.0),
        )
        for number in range(SESSIONS)
    ]


def played(engines: int, shared_tokens: int, spread_s: float) -> Cluster:
    """All sessions, which begin within `spread_s`, are over."""
    cluster = Cluster(engines, TOTAL_BLOCKS)
    rng = random.Random(3)
    for session in sessions(shared_tokens):
        cluster.at(rng.uniform(0.0, spread_s), lambda session=session: session.start(cluster))  # type: ignore[misc]
    cluster.run()
    assert sum(engine.requests for engine in cluster.engines) == SESSIONS * TURNS
    return cluster


def cached(cluster: Cluster) -> int:
    return sum(engine.cached_tokens for engine in cluster.engines)


@pytest.mark.parametrize("shared_tokens", [0, 2_048])
@pytest.mark.parametrize("spread_s", [0.0, 20.0])
def test_conversations_find_what_one_engine_core_alone_would_have_and_no_engine_core_is_loaded_more_than_others(
    shared_tokens: int, spread_s: float
) -> None:
    alone, four = played(1, shared_tokens, spread_s), played(4, shared_tokens, spread_s)
    assert cached(four) >= 0.95 * cached(alone), (cached(four), cached(alone))
    for loads in ([e.requests for e in four.engines], [e.computed_tokens for e in four.engines]):
        assert max(loads) <= 1.3 * sum(loads) / 4, loads
    assert four.reasons.count(RouteReason.AFFINITY) > 0.8 * SESSIONS * (TURNS - 1)


def test_routing_by_load_alone_would_find_much_less(monkeypatch: pytest.MonkeyPatch) -> None:
    """So the bar above is not met by any routing."""
    monkeypatch.setattr("coordinator.block_index.BlockIndex.match", lambda self, engine, keys: Match())
    by_load = played(4, 0, 20.0)
    monkeypatch.undo()
    assert cached(by_load) < 0.6 * cached(played(4, 0, 20.0))
