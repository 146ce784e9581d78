"""Does the slot runner compute for this model what mlx-lm computes? Asked when the model is loaded, level by level.

Slots rely on what a model's code happens to do with its cache. Most that do not fit raise; some are silently wrong
(afm7 in mlx-lm 0.32.2: relative error 0.15, no exception). So sequences of random tokens are run through slots of
small pools: in chunks, beside rows that idle or decode, in several pools at once, with gaps, moved from pool to pool,
copied from each other, with a slot used again. Their logits are compared with those that mlx-lm's own caches give.
Where layers have windows, one sequence is longer than they are, unless they are very long.
"""

import random
from collections.abc import Sequence

import mlx.core as mx

from engine_core.device import Admission, DecodeRow, PrefillChunk, RowCopy, RowMove, Slot, StepPlan
from engine_core.mlx_lm_adapter import cache_arrays, make_prompt_cache
from engine_core.model_runner import LanguageModel, ModelRunner
from engine_core.slot_layout import CacheLayout, shortest_window
from protocol.sampling import SamplingParams

TOLERANCES = {mx.float32: 1e-3, mx.float16: 2e-2, mx.bfloat16: 5e-2}
"""Largest difference allowed, relative to the largest logit. Measured noise in float32: up to 7e-6."""

LONGEST_WINDOW = 1024
"""A longer one is not filled: its prefill, twice, would be felt at each start. (Gemma has 512 and 1024, gpt-oss 128;
the models coverage test fills short ones of every architecture.)"""
_LENGTH = 24
"""Tokens of a test sequence, but for what fills a window."""
_CHUNK = 256
_SMALL, _MIDDLE = 32, 64
"""Slot lengths of the first two pools; a third one holds what fills a window."""
TEST_ROWS = 5

_REFUSALS = (AttributeError, IndexError, KeyError, NotImplementedError, RuntimeError, TypeError, ValueError)
"""What a model's code raises when it meets a cache that it was not written for."""


def pool_lengths_to_test(filling: int) -> tuple[int, ...]:
    """Of the pools that the runner to be tested must have; `filling` as in `find_fault`."""
    return (_SMALL, _MIDDLE, filling + _MIDDLE)


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


class _Rig:
    """Runs plans, and keeps the logits of their decode rows."""

    def __init__(self, runner: ModelRunner) -> None:
        self.runner = runner
        self._pool_slots: Sequence[int] = (0, 0, 0)

    def prepare(self, pool_slots: Sequence[int] | None = None, **orders: Sequence[object]) -> None:
        self._pool_slots = self._pool_slots if pool_slots is None else pool_slots
        self.runner.prepare(StepPlan(pool_slots=self._pool_slots, **orders))  # type: ignore[arg-type]

    def feed(self, chunks: Sequence[PrefillChunk], decoding: Sequence[_Sequence] = ()) -> None:
        decodes = [sequence.take_decode() for sequence in decoding]
        token_ids = mx.array([decode.token_id or 0 for decode in decodes], mx.uint32)
        logits = self.runner.forward(chunks, decodes, token_ids)
        mx.eval(self.runner.written_arrays(), [] if logits is None else logits)
        for index, sequence in enumerate(decoding):
            assert logits is not None
            sequence.results[sequence.fed - 1] = logits[index : index + 1]


def find_fault(
    model: LanguageModel, runner: ModelRunner, vocab_size: int, logits_dtype: mx.Dtype, filling: int = 0
) -> str | None:
    """Why the level of `runner` must not be used for the model, or None when it gives the right logits.

    `runner` has the pools of `pool_lengths_to_test`, and TEST_ROWS rows at least; it holds no row when it is right, and
    is not to be used again when it is not. `filling` is how many tokens one of the test sequences has before the tested
    ones (`window_to_fill`).
    """
    try:
        difference = _largest_difference(model, runner, vocab_size, filling)
    except _REFUSALS as error:
        return f"the model does not accept slot caches: {type(error).__name__}: {error}"
    tolerance = TOLERANCES[logits_dtype]
    if difference <= tolerance:  # a NaN is no agreement
        return None
    return f"logits differ by {difference:.2g} of the largest one (tolerance {tolerance:.2g})"


def window_to_fill(layouts: Sequence[CacheLayout]) -> int:
    """The shortest window of the layers; 0 when there is none, or when it is too long for a test."""
    window = shortest_window(layouts) or 0
    return window if window <= LONGEST_WINDOW else 0


def _largest_difference(model: LanguageModel, runner: ModelRunner, vocab_size: int, filling: int) -> float:
    draw = random.Random(20)
    sequences = [
        _Sequence(row, [draw.randrange(vocab_size) for _ in range(length)])
        for row, length in ((2, filling + _LENGTH), (0, _LENGTH), (1, _LENGTH), (2, _LENGTH), (4, _LENGTH))
    ]
    sequences[4].token_ids[:6] = sequences[1].token_ids[:6]
    _run(_Rig(runner), sequences, filling)
    differences = [sequence.relative_difference(model) for sequence in sequences]
    return max(differences) if all(difference == difference for difference in differences) else float("nan")


def _run(rig: _Rig, sequences: Sequence[_Sequence], filling: int) -> None:
    """`first` fills the window, and leaves; `last` takes its row. `copied` begins with what `second` has."""
    first, second, third, last, copied = sequences
    rig.prepare((2, 0, 1), admissions=[_admission(first, Slot(2, 0))])
    for start in range(0, filling, _CHUNK):
        rig.feed([first.take_chunk(min(_CHUNK, filling - start))])
    rig.feed([first.take_chunk(5)])
    rig.feed([first.take_chunk(3)], [first])
    rig.prepare(admissions=[_admission(second, Slot(0, 1))])
    rig.feed([second.take_chunk(4)], [first])
    rig.feed([second.take_chunk(3)], [second, first])
    rig.prepare((6, 0, 1), admissions=[_admission(third, Slot(0, 3))])
    _copy(rig, second, copied, 6)
    rig.feed([third.take_chunk(3)], [copied, second, first])
    rig.feed([], [third, second, copied, first])
    rig.prepare((6, 2, 1), moves=[RowMove(second.row, Slot(1, 1)), RowMove(copied.row, Slot(0, 1))])
    rig.feed([third.take_chunk(4)], [second, first, copied])
    rig.feed([], [copied, third])
    rig.prepare((4, 2, 0), releases=[first.row], admissions=[_admission(last, Slot(1, 0))])
    rig.feed([last.take_chunk(2)], [second, copied])
    for group in ([second, last], [last], [last, third, second, copied]):
        rig.feed([], group)
    rig.prepare((0, 0, 0), releases=[sequence.row for sequence in (second, third, last, copied)])


def _copy(rig: _Rig, source: _Sequence, target: _Sequence, tokens: int) -> None:
    """`target` joins in the slot after next; where rows cannot be copied it is fed instead."""
    admissions = [_admission(target, Slot(0, 5))]
    if rig.runner.stores_blocks and not rig.runner.has_states:
        rig.prepare(admissions=admissions, copies=[RowCopy(source.row, target.row, tokens)])
        target.fed = tokens
    else:
        rig.prepare(admissions=admissions)
        rig.feed([target.take_chunk(tokens)])


def _admission(sequence: _Sequence, slot: Slot) -> Admission:
    return Admission(sequence.row, slot, (), (), SamplingParams(max_tokens=1))
