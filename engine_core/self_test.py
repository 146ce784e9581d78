"""Does the slot runner compute for this model what mlx-lm computes? Asked once, when the model is loaded.

Slots rely on what a model's code happens to do with its cache. Most that do not fit raise; some are silently wrong
(afm7 in mlx-lm 0.32.2: relative error 0.15, no exception). So sequences of random tokens are run through the slots in
chunks, staggered, beside rows that idle and with a row used again, and the logits compared with those that mlx-lm's
own caches give. Where layers have windows, one sequence is longer than they are, unless they are very long.
"""

import random
from collections.abc import Sequence

import mlx.core as mx

from engine_core.device import DecodeRow, PrefillChunk
from engine_core.kv_budget import round_kv_length
from engine_core.mlx_lm_adapter import cache_arrays, make_prompt_cache
from engine_core.model_runner import LanguageModel, ModelRunner
from engine_core.slot_layout import CacheLayout, shortest_window

TOLERANCES = {mx.float32: 1e-3, mx.float16: 2e-2, mx.bfloat16: 5e-2}
"""Largest difference allowed, relative to the largest logit. Measured noise in float32: up to 7e-6."""

LONGEST_WINDOW = 1024
"""A longer one is not filled: its prefill, twice, would be felt at each start. (Gemma has 512 and 1024, gpt-oss 128;
the models coverage test fills short ones of every architecture.)"""
_LENGTH = 24
"""Tokens of a test sequence, but for what fills a window."""
_CHUNK = 256
_ROWS = 3

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
        """Of the slots' logits from those of mlx-lm's caches, fed with the same tokens in two chunks."""
        cache, start = make_prompt_cache(model), min(self.results)
        if start:
            model(mx.array([self.token_ids[:start]]), cache=cache)
            mx.eval(cache_arrays(cache))  # and not the logits, which may be many
        expected = model(mx.array([self.token_ids[start : self.fed]]), cache=cache)[0].astype(mx.float32)
        found = mx.concatenate(list(self.results.values())).astype(mx.float32)
        wanted = expected[mx.array([position - start for position in self.results])]
        difference: float = (mx.abs(found - wanted).max() / mx.abs(wanted).max()).item()  # type: ignore[assignment]
        return difference


def find_fault(
    model: LanguageModel, runner: ModelRunner, vocab_size: int, logits_dtype: mx.Dtype, filling: int = 0
) -> str | None:
    """Why `runner` must not be used for the model, or None when it gives the right logits and has no row taken.

    `filling` is how many tokens one of the test sequences has before the tested ones (`window_to_fill`).
    """
    try:
        difference = _largest_difference(model, runner, vocab_size, filling)
    except _REFUSALS as error:
        return f"the model does not accept slot caches: {type(error).__name__}: {error}"
    tolerance = TOLERANCES[logits_dtype]
    if difference <= tolerance:  # a NaN is no agreement
        return None
    return f"logits differ by {difference:.2g} of the largest one (tolerance {tolerance:.2g})"


def window_to_fill(layouts: Sequence[CacheLayout], capacity_tokens: int) -> int:
    """The shortest window of the layers; 0 when there is none, or when the test must not or cannot fill it."""
    window = shortest_window(layouts) or 0
    fits = _ROWS * round_kv_length(window + _LENGTH) <= capacity_tokens
    return window if fits and window <= LONGEST_WINDOW else 0


def _largest_difference(model: LanguageModel, runner: ModelRunner, vocab_size: int, filling: int) -> float:
    draw = random.Random(20)
    sequences = [
        _Sequence(row, [draw.randrange(vocab_size) for _ in range(length)])
        for row, length in ((2, filling + _LENGTH), (0, _LENGTH), (1, _LENGTH), (2, _LENGTH))
    ]
    _run(runner, sequences, filling)
    runner.reserve(0, 0)
    differences = [sequence.relative_difference(model) for sequence in sequences]
    return max(differences) if all(difference == difference for difference in differences) else float("nan")


def _run(runner: ModelRunner, sequences: Sequence[_Sequence], filling: int) -> None:
    """`first` runs alone, beside rows that are empty, that are being prefilled and that decode; the last one takes
    its row when it ended. Who idles between two rows that decode goes on afterwards."""
    first, second, third, last = sequences
    runner.admit(first.row)
    runner.reserve(_ROWS, filling + _LENGTH)
    for start in range(0, filling, _CHUNK):
        runner.prefill(first.take_chunk(min(_CHUNK, filling - start)))
    runner.prefill(first.take_chunk(5))
    runner.prefill(first.take_chunk(3))
    _decode(runner, [first])
    runner.admit(second.row)
    runner.prefill(second.take_chunk(4))
    _decode(runner, [first])
    runner.prefill(second.take_chunk(1))
    for _ in range(3):
        _decode(runner, [second, first])
    runner.admit(third.row)
    runner.prefill(third.take_chunk(3))
    for group in ([second, first], [first, third, second], [second, first], [third]):
        _decode(runner, group)
    runner.release(first.row)
    runner.admit(last.row)
    for group in ([second, last], [last], [last, third, second]):
        _decode(runner, group)
    for sequence in (second, third, last):
        runner.release(sequence.row)


def _decode(runner: ModelRunner, sequences: Sequence[_Sequence]) -> None:
    logits = runner.decode([sequence.take_decode() for sequence in sequences])
    mx.eval(logits, runner.written_arrays())
    for index, sequence in enumerate(sequences):
        sequence.results[sequence.fed - 1] = logits[index : index + 1]
