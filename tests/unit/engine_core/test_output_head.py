from collections.abc import Iterator
from typing import Any

import mlx.core as mx
import mlx.nn as nn
import numpy as np
import pytest
from tiny_models import VOCAB, tiny_model

from engine_core.output_head import Selection, selection_of

IDS = mx.array([[5], [6], [7], [8]])


@pytest.fixture
def computed(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[int]]:
    """Rows of each product with a matrix of as many outputs as there are tokens."""
    rows: list[int] = []
    for owner, name in ((nn.Linear, "__call__"), (nn.Embedding, "as_linear"), (nn.QuantizedEmbedding, "as_linear")):
        monkeypatch.setattr(owner, name, _counting(getattr(owner, name), rows))
    yield rows


def _counting(plain: Any, rows: list[int]) -> Any:
    def counted(module: Any, x: mx.array) -> mx.array:
        result: mx.array = plain(module, x)
        if result.shape[-1] == VOCAB:
            rows.append(x.shape[0])
        return result

    return counted


@pytest.mark.parametrize(("model_type", "quantised"), [("llama", False), ("llama", True), ("qwen2", False)])
def test_the_head_computes_the_wanted_rows_alone(model_type: str, quantised: bool, computed: list[int]) -> None:
    """llama's is tied to its embedding here, qwen2's is its own."""
    model = tiny_model(model_type, intermediate_size=128)
    if quantised:
        nn.quantize(model, group_size=32, bits=8)
    expected = np.array(model(IDS))
    selection = selection_of(model)
    computed.clear()
    found = selection.logits(mx.array([2, 0]), lambda: model(IDS))
    assert np.array(found) == pytest.approx(expected[[2, 0]], abs=1e-5)
    assert computed == [2]
    assert np.array(selection.logits(None, lambda: model(IDS))) == pytest.approx(expected, abs=1e-6)


def test_outside_of_a_selection_and_after_an_error_all_rows_are_computed() -> None:
    model = tiny_model("llama")
    selection = selection_of(model)

    def failing() -> mx.array:
        raise ValueError("a model that does not like its cache")

    with pytest.raises(ValueError):
        selection.logits(mx.array([1]), failing)
    assert model(IDS).shape[0] == 4


def test_rows_are_selected_afterwards_where_the_head_is_not_known() -> None:
    model = tiny_model("llama")
    expected = np.array(model(IDS))
    found = Selection().logits(mx.array([3, 1]), lambda: model(IDS))
    assert np.array(found) == pytest.approx(expected[[3, 1]], abs=1e-6)


def test_a_layer_as_wide_as_the_vocabulary_is_not_taken_for_the_head() -> None:
    model = tiny_model("llama", intermediate_size=VOCAB)
    expected = np.array(model(IDS))
    found = selection_of(model).logits(mx.array([3, 1]), lambda: model(IDS))
    assert np.array(found) == pytest.approx(expected[[3, 1]], abs=1e-5)


def test_weights_keep_their_names() -> None:
    model = tiny_model("qwen2")
    before = {name for name, _ in model.named_modules()}
    selection_of(model)
    assert {name for name, _ in model.named_modules()} == before
