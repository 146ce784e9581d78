"""Model cards on their way from engine cores to API servers."""

import pytest
from core_fixture import Core, FakeClient, FakeEngine

from coordinator import card_cache
from coordinator.events import Send
from protocol.messages import Card, CardUnknown, GetCard


@pytest.fixture
def core() -> Core:
    return Core()


def wants_card(engine: FakeEngine) -> bool:
    return engine.hello()[0].want_card  # type: ignore[attr-defined, no-any-return]


def test_a_card_is_wanted_once(core: Core) -> None:
    first = FakeEngine(core, "engine-0")
    assert wants_card(first)
    first.card()
    assert not wants_card(FakeEngine(core, "engine-1"))
    assert wants_card(FakeEngine(core, "engine-2", model="other"))


def test_a_card_is_handed_on_with_its_buffer(core: Core) -> None:
    engine, client = FakeEngine(core), FakeClient(core)
    engine.hello()
    engine.card()
    client.hello()
    assert client.say(GetCard("hash-of-small")) == [Card("hash-of-small")]
    (send,) = [command for command in core.commands if isinstance(command, Send)]
    assert list(send.buffers) == [b"packed card"]


def test_who_asks_before_the_card_came_gets_it_when_it_comes(core: Core) -> None:
    engine, client = FakeEngine(core), FakeClient(core)
    engine.hello()
    client.hello()
    assert client.say(GetCard("hash-of-small")) == []
    engine.card()
    assert core.sent_to(client.identity) == [Card("hash-of-small")]


def test_who_waits_for_a_card_of_an_engine_core_that_dies_is_told(core: Core) -> None:
    engine, client = FakeEngine(core), FakeClient(core)
    engine.hello()
    client.hello()
    client.say(GetCard("hash-of-small"))
    engine.unreachable()
    assert CardUnknown("hash-of-small") in core.sent_to(client.identity)


def test_a_card_that_nobody_announced_is_unknown(core: Core) -> None:
    client = FakeClient(core)
    client.hello()
    assert client.say(GetCard("nonsense")) == [CardUnknown("nonsense")]


def test_a_card_that_its_engine_core_did_not_announce_is_dropped(core: Core) -> None:
    engine, client = FakeEngine(core), FakeClient(core)
    engine.hello()
    client.hello()
    engine.say(Card("hash-of-other"), b"x")
    assert core.drops()
    engine.say(Card("hash-of-small"))
    assert core.drops()
    assert client.say(GetCard("hash-of-other")) == [CardUnknown("hash-of-other")]


def test_the_card_used_longest_ago_goes_first(core: Core, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(card_cache, "MAX_CARDS", 2)
    client = FakeClient(core)
    client.hello()
    for model in ("a", "b", "c"):
        engine = FakeEngine(core, f"engine-{model}", model=model)
        engine.hello()
        engine.card()
        client.say(GetCard("hash-of-a"))
    assert wants_card(FakeEngine(core, "engine-x", model="b"))
    assert not wants_card(FakeEngine(core, "engine-y", model="a"))


def test_cards_are_limited_by_size(core: Core, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(card_cache, "MAX_CARD_BYTES_TOTAL", 2 * len(b"packed card"))
    for model in ("a", "b", "c"):
        engine = FakeEngine(core, f"engine-{model}", model=model)
        engine.hello()
        engine.card()
    assert wants_card(FakeEngine(core, "engine-x", model="a"))


def test_waiting_for_cards_is_limited(core: Core, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(card_cache, "MAX_WAITING", 1)
    FakeEngine(core).hello()
    first, second = FakeClient(core, "api-0"), FakeClient(core, "api-1")
    first.hello()
    second.hello()
    assert first.say(GetCard("hash-of-small")) == []
    assert second.say(GetCard("hash-of-small")) == [CardUnknown("hash-of-small")]


def test_an_api_server_that_is_gone_gets_no_card(core: Core) -> None:
    engine, client, other = FakeEngine(core), FakeClient(core), FakeClient(core, "api-1")
    for member in (engine, client, other):
        member.hello()
    client.say(GetCard("hash-of-small"))
    other.exited(client.name, client.pid)
    engine.card()
    assert core.sent_to(client.identity) == []
