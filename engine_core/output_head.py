"""Logits of the wanted tokens alone.

A forward that mixes prefill and decode rows would compute logits of every token: of a 135M model with 49,152 tokens of
vocabulary, 9 % of a forward with 256 tokens of prefill, and more memory than all other activations. mlx-lm's models
have no argument for it. So the module that makes the logits, lm_head or the token embedding where they are tied, gets a
subclass of its own class, which takes the wanted rows before it computes; its weights and names stay the same.

Nothing depends on whether it works: where the logits come back with all rows (a model that multiplies by the weights
itself), they are selected afterwards.
"""

from collections.abc import Callable
from typing import Any

import mlx.core as mx
import mlx.nn as nn


class Selection:
    """Selects rows in the forward that is being traced."""

    def __init__(self) -> None:
        self._rows: mx.array | None = None
        self._is_done = False

    def of(self, hidden: mx.array) -> mx.array:
        """The wanted rows of [tokens, n, dim]: what the head computes with."""
        self._is_done = True
        return hidden if self._rows is None else hidden[self._rows]

    def logits(self, rows: mx.array | None, forward: Callable[[], mx.array]) -> mx.array:
        """Those rows of what `forward` gives, [rows, n, vocabulary]; None for all of them."""
        self._rows, self._is_done = rows, False
        try:
            logits = forward()
        finally:
            self._rows = None
        return logits if rows is None or self._is_done else logits[rows]


class _SelectingLinear(nn.Linear):  # type: ignore[misc]  # mlx.nn is typed in part
    selection: Selection

    def __call__(self, x: mx.array) -> mx.array:
        logits: mx.array = super().__call__(self.selection.of(x))
        return logits


class _SelectingQuantizedLinear(nn.QuantizedLinear):  # type: ignore[misc]
    selection: Selection

    def __call__(self, x: mx.array) -> mx.array:
        logits: mx.array = super().__call__(self.selection.of(x))
        return logits


class _SelectingEmbedding(nn.Embedding):  # type: ignore[misc]
    selection: Selection

    def as_linear(self, x: mx.array) -> mx.array:
        logits: mx.array = super().as_linear(self.selection.of(x))
        return logits


class _SelectingQuantizedEmbedding(nn.QuantizedEmbedding):  # type: ignore[misc]
    selection: Selection

    def as_linear(self, x: mx.array) -> mx.array:
        logits: mx.array = super().as_linear(self.selection.of(x))
        return logits


_LINEAR: dict[type, type] = {nn.Linear: _SelectingLinear, nn.QuantizedLinear: _SelectingQuantizedLinear}
_EMBEDDING: dict[type, type] = {nn.Embedding: _SelectingEmbedding, nn.QuantizedEmbedding: _SelectingQuantizedEmbedding}


def selection_of(model: Any) -> Selection:
    """By what the model's output head selects rows. To be called once for a model: it changes the head's class.

    A model without a head that is known here computes all logits.
    """
    selection = Selection()
    head = _output_head(dict(model.named_modules()))
    if head is not None:
        head.__class__ = (_LINEAR | _EMBEDDING)[type(head)]
        head.selection = selection
    return selection


def _output_head(modules: dict[str, Any]) -> Any | None:
    """The linear layer with as many outputs as the largest embedding has rows, if one is in no list of layers and has
    the shortest path of these (`lm_head`, `language_model.lm_head`, `model.output`); else that embedding."""
    embeddings = [module for module in modules.values() if type(module) in _EMBEDDING]
    if not embeddings:
        return None
    table = max(embeddings, key=lambda module: int(module.weight.shape[0]))
    heads = [
        path.split(".")
        for path, module in modules.items()
        if type(module) in _LINEAR and module.weight.shape[0] == table.weight.shape[0]
    ]
    outside = sorted((len(path), ".".join(path)) for path in heads if not any(name.isdigit() for name in path))
    return modules[outside[0][1]] if outside else table
