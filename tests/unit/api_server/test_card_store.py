"""Model cards: asked for, made into models, dropped."""

import functools

import pytest
import tokenizers
from tokenizers import models

from api_server import card_store
from api_server.card_store import CardStore
from api_server.generation_backend import NoModel, UnknownModel
from api_server.served_model import ServedModel
from protocol.card import ModelCard


@functools.cache
def served(name: str, created: int = 0) -> ServedModel:
    tokenizer = tokenizers.Tokenizer(models.WordLevel({"a": 0, "[unk]": 1}, unk_token="[unk]"))
    return ServedModel(ModelCard(name, 64, 8, tokenizer.to_str(), eos_token_ids=(1,), created=created), "h")


@pytest.fixture
def store() -> CardStore:
    return CardStore()


def make(store: CardStore, card_hash: str, model: ServedModel, now_s: float = 0.0) -> None:
    store.needed({card_hash}, now_s)
    assert store.begin(card_hash)
    store.finish(card_hash, model)
    store.check_invariants()


def test_a_card_is_asked_for_once_and_again_when_it_does_not_come(store: CardStore) -> None:
    store.needed({"h"}, 0.0)
    assert store.to_ask_for(0.0) == ["h"]
    assert store.to_ask_for(card_store.ASK_AGAIN_S - 0.1) == []
    assert store.to_ask_for(card_store.ASK_AGAIN_S) == ["h"]


def test_a_new_coordinator_is_asked_at_once(store: CardStore) -> None:
    store.needed({"h"}, 0.0)
    store.to_ask_for(0.0)
    store.coordinator_changed(0.1)
    assert store.to_ask_for(0.1) == ["h"]


def test_a_card_that_the_coordinator_does_not_have_is_asked_for_soon(store: CardStore) -> None:
    store.needed({"h"}, 0.0)
    store.to_ask_for(0.0)
    store.unknown("h", 0.0)
    assert store.to_ask_for(0.5) == []
    assert store.to_ask_for(card_store.UNKNOWN_AGAIN_S) == ["h"]


def test_a_model_is_made_once_per_card(store: CardStore) -> None:
    store.needed({"h"}, 0.0)
    assert store.begin("h")
    assert not store.begin("h")
    assert store.to_ask_for(100.0) == []
    store.finish("h", served("tiny"))
    assert not store.begin("h")
    assert store.to_ask_for(200.0) == []
    assert store.has_any({"h", "x"})


def test_a_card_that_nobody_needs_is_not_built(store: CardStore) -> None:
    assert not store.begin("h")


def test_a_damaged_card_is_asked_for_later(store: CardStore) -> None:
    store.needed({"h"}, 0.0)
    store.to_ask_for(0.0)
    store.begin("h")
    store.fail("h", 1.0)
    assert not store.has_any({"h"})
    assert store.to_ask_for(1.0 + card_store.ASK_AGAIN_S) == []
    assert store.to_ask_for(1.0 + card_store.DAMAGED_AGAIN_S) == ["h"]


def test_cards_are_settled_once_each_is_a_model_or_known_to_be_none(store: CardStore) -> None:
    assert store.are_settled(set())
    assert not store.are_settled({"h"})
    make(store, "h", served("tiny"))
    assert store.are_settled({"h"})
    assert (store.has_named("tiny"), store.has_named("other"), store.has_named(None)) == (True, False, False)
    store.needed({"h", "bad"}, 0.0)
    assert not store.are_settled({"h", "bad"})
    store.begin("bad")
    assert not store.are_settled({"h", "bad"})
    store.fail("bad", 0.0)
    assert store.are_settled({"h", "bad"})


def test_a_model_outlives_its_engine_cores_for_a_while(store: CardStore) -> None:
    make(store, "h", served("tiny"))
    store.needed(set(), card_store.RETENTION_S)
    assert store.models() == [served("tiny")]
    store.needed(set(), card_store.RETENTION_S + 0.1)
    assert store.models() == []


def test_a_build_that_ends_after_its_card_was_dropped_is_forgotten(store: CardStore) -> None:
    store.needed({"h"}, 0.0)
    store.begin("h")
    store.needed(set(), card_store.RETENTION_S + 0.1)
    store.finish("h", served("tiny"))
    store.fail("h", 100.0)
    assert store.models() == []


def test_of_two_cards_of_one_name_the_one_in_use_counts_then_the_newer(store: CardStore) -> None:
    make(store, "old", served("tiny", created=2), now_s=1.0)
    make(store, "new", served("tiny", created=1), now_s=2.0)
    assert store.model("tiny").created == 1
    store.needed({"old", "new"}, 3.0)
    assert store.model("tiny").created == 2


def test_models_are_found_by_name(store: CardStore) -> None:
    with pytest.raises(NoModel):
        store.model(None)
    make(store, "a", served("a"))
    assert store.model(None).name == "a"
    make(store, "b", served("b"))
    assert [model.name for model in store.models()] == ["a", "b"]
    assert store.model("b").name == "b"
    for name in ("c", None):
        with pytest.raises(UnknownModel):
            store.model(name)


def test_a_long_unknown_name_is_not_repeated_in_full(store: CardStore) -> None:
    make(store, "a", served("a"))
    with pytest.raises(UnknownModel) as unknown:
        store.model("x" * 100_000)
    assert len(str(unknown.value)) < 200
