"""Does the slot runner compute for this model what mlx-lm computes? Asked once, when the model is loaded.

Slots rely on what a model's code happens to do with its cache. Most that do not fit raise; some are silently wrong
(afm7 in mlx-lm 0.32.2: relative error 0.15, no exception). So sequences of random tokens are run through the slots in
chunks, staggered and with a row used again, and the logits compared with those of a plain forward.
"""

import random
from collections.abc import Sequence

import mlx.core as mx

from engine_core.device import DecodeRow, PrefillChunk
from engine_core.mlx_lm_adapter import make_prompt_cache
from engine_core.model_runner import LanguageModel, ModelRunner

TOLERANCES = {mx.float32: 1e-3, mx.float16: 2e-2, mx.bfloat16: 5e-2}
"""Largest difference allowed, relative to the largest logit. Measured noise in float32: up to 7e-6."""

_REFUSALS = (AttributeError, IndexError, KeyError, NotImplementedError, RuntimeError, TypeError, ValueError)
"""What a model's code raises when it meets a cache that it was not written for."""


class _Sequence:
    """One test sequence, and the slots' logits after the tokens fed so far as decode rows."""

    def __init__(self, row: int, token_ids: list[int]) -> None:
        self.row = row
        self.token_ids = token_ids
        self.fed = 0
        self.results: dict[int, mx.array] = {}

    def take_chunk(self, tokens: int) -> PrefillChunk:
        start, self.fed = self.fed, self.fed + tokens
        return PrefillChunk(self.row, start, self.token_ids[start : self.fed])

    def take_decode(self) -> DecodeRow:
        self.fed += 1
        return DecodeRow(self.row, self.fed - 1, self.token_ids[self.fed - 1], 0)

    def relative_difference(self, model: LanguageModel) -> float:
        """Of the slots' logits from a plain forward over the whole sequence."""
        expected = model(mx.array([self.token_ids]), cache=make_prompt_cache(model))[0].astype(mx.float32)
        found = mx.concatenate(list(self.results.values())).astype(mx.float32)
        wanted = expected[mx.array(list(self.results))]
        difference: float = (mx.abs(found - wanted).max() / mx.abs(wanted).max()).item()  # type: ignore[assignment]
        return difference


def find_fault(model: LanguageModel, runner: ModelRunner, vocab_size: int, logits_dtype: mx.Dtype) -> str | None:
    """Why `runner` must not be used for the model, or None when it gives the right logits and has no row taken."""
    try:
        difference = _largest_difference(model, runner, vocab_size)
    except _REFUSALS as error:
        return f"the model does not accept slot caches: {type(error).__name__}: {error}"
    tolerance = TOLERANCES[logits_dtype]
    if difference <= tolerance:  # a NaN is no agreement
        return None
    return f"logits differ by {difference:.2g} of the largest one (tolerance {tolerance:.2g})"


def _largest_difference(model: LanguageModel, runner: ModelRunner, vocab_size: int) -> float:
    draw = random.Random(20)
    first, second, third = (
        _Sequence(row, [draw.randrange(vocab_size) for _ in range(length)]) for row, length in ((1, 13), (0, 9), (1, 5))
    )
    _run(runner, first, second)
    runner.release(first.row)
    _run_in_used_row(runner, second, third)
    runner.release(second.row)
    runner.release(third.row)
    runner.reserve(0, 0)
    differences = [sequence.relative_difference(model) for sequence in (first, second, third)]
    return max(differences) if all(difference == difference for difference in differences) else float("nan")


def _run(runner: ModelRunner, first: _Sequence, second: _Sequence) -> None:
    """`first` runs beside an empty row, then beside one that is being prefilled, then beside one that decodes."""
    runner.admit(first.row)
    runner.reserve(2, 16)
    runner.prefill(first.take_chunk(5))
    runner.prefill(first.take_chunk(3))
    _decode(runner, [first])
    runner.admit(second.row)
    runner.prefill(second.take_chunk(4))
    _decode(runner, [first])
    runner.prefill(second.take_chunk(1))
    for _ in range(3):
        _decode(runner, [second, first])


def _run_in_used_row(runner: ModelRunner, running: _Sequence, joining: _Sequence) -> None:
    runner.admit(joining.row)
    runner.prefill(joining.take_chunk(3))
    for group in ([running, joining], [joining]):
        _decode(runner, group)


def _decode(runner: ModelRunner, sequences: Sequence[_Sequence]) -> None:
    logits = runner.decode([sequence.take_decode() for sequence in sequences])
    mx.eval(logits, runner.written_arrays())
    for index, sequence in enumerate(sequences):
        sequence.results[sequence.fed - 1] = logits[index : index + 1]
