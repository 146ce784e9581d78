"""Chooses the next token of every decoding row, in one go, doing only the work that some row asked for.

Order: logit bias, penalties, minimum tokens, temperature, min-p, top-k, top-p, draw. The draw is the inverse of the
distribution function in vocabulary order at a uniform number that the host makes from (seed, output position), so
that a row's token depends on its own logits and parameters alone: not on the batch, nor on the step.
"""

from collections.abc import Iterator, Sequence

import mlx.core as mx

from engine_core.device import Admission, DecodeRow
from engine_core.penalties import PenaltyCounts, PenaltyRows, wants_penalties
from engine_core.token_filters import TokenFilters
from engine_core.uniforms import uniform
from protocol.sampling import SamplingParams

GREEDY_BELOW = 1e-5
"""A temperature below this is greedy: the division would overflow."""


def is_greedy(params: SamplingParams) -> bool:
    """Whether the likeliest token is taken."""
    return params.temperature < GREEDY_BELOW


class _Batch:
    """What the parameters of a fixed list of rows come to; made anew when the list changes or one of them leaves."""

    def __init__(self, rows: Sequence[int], params: Sequence[SamplingParams], vocab_size: int) -> None:
        self.rows = tuple(rows)
        self.params = tuple(params)
        self.bias = _Bias.of(params, vocab_size)
        penalised = [i for i, p in enumerate(params) if wants_penalties(p)]
        self.penalties = (
            PenaltyRows(penalised, [rows[i] for i in penalised], [params[i] for i in penalised]) if penalised else None
        )
        self.drawn = [i for i, p in enumerate(params) if not is_greedy(p)]
        drawn_params = [params[i] for i in self.drawn]
        self.drawn_indices = mx.array(self.drawn)
        self.temperatures = mx.array([p.temperature for p in drawn_params], mx.float32)[:, None]
        self.filters = TokenFilters(drawn_params)


class _Bias:
    """The logit biases of all rows as one scatter."""

    def __init__(self, entries: Sequence[tuple[int, int, float]]) -> None:
        self._indices = mx.array([index for index, _, _ in entries])
        self._tokens = mx.array([token for _, token, _ in entries])
        self._values = mx.array([value for _, _, value in entries], mx.float32)

    @classmethod
    def of(cls, params: Sequence[SamplingParams], vocab_size: int) -> "_Bias | None":
        """None when no row has a bias. An id beyond the vocabulary names no token, so there is nothing to bias."""
        entries = [
            (index, token, bias)
            for index, row in enumerate(params)
            for token, bias in row.logit_bias.items()
            if 0 <= token < vocab_size
        ]
        return cls(entries) if entries else None

    def apply(self, logits: mx.array) -> mx.array:
        return logits.at[self._indices, self._tokens].add(self._values)


class Sampler:
    """Owner of the sampling state of all taken rows."""

    def __init__(self, vocab_size: int, eos_token_ids: Sequence[int]) -> None:
        self._vocab_size = vocab_size
        self._eos_token_ids = tuple(eos_token_ids)
        self._params: dict[int, SamplingParams] = {}
        self._counts = PenaltyCounts(vocab_size)
        self._batch: _Batch | None = None

    def admit(self, admission: Admission) -> None:
        """A sequence takes a row; what it has of output already counts as if it had been sampled here."""
        self._params[admission.row] = admission.sampling
        if wants_penalties(admission.sampling):
            self._counts.admit(admission.row, admission.prompt, admission.output)

    def release(self, row: int) -> None:
        """Forgets a row."""
        del self._params[row]
        self._counts.release(row)
        self._batch = None

    def sample(self, logits: mx.array, decodes: Sequence[DecodeRow]) -> mx.array:
        """The next tokens, uint32 [rows], not evaluated, of logits [rows, vocabulary] in the order of `decodes`."""
        batch = self._batch_of([decode.row for decode in decodes])
        positions = [decode.output_position for decode in decodes]
        logits = self._adjusted(logits, batch, positions)
        if not batch.drawn:
            tokens = mx.argmax(logits, axis=-1)
        elif len(batch.drawn) == len(decodes):
            tokens = _draw(logits, batch, positions)
        else:
            tokens = mx.argmax(logits, axis=-1)
            tokens[batch.drawn_indices] = _draw(logits[batch.drawn_indices], batch, positions)
        if batch.penalties is not None:
            self._counts.add(batch.penalties, tokens)
        return tokens

    def _batch_of(self, rows: Sequence[int]) -> _Batch:
        if self._batch is None or self._batch.rows != tuple(rows):
            self._batch = _Batch(rows, [self._params[row] for row in rows], self._vocab_size)
        return self._batch

    def _adjusted(self, logits: mx.array, batch: _Batch, positions: Sequence[int]) -> mx.array:
        """Logits after bias, penalties and minimum tokens; of any dtype while nothing changes them, else float32."""
        if batch.bias is not None:
            logits = batch.bias.apply(logits.astype(mx.float32))
        if batch.penalties is not None:
            logits = self._counts.apply(logits.astype(mx.float32), batch.penalties)
        forbidden = list(self._forbidden(batch, positions))
        if forbidden:
            indices, tokens = (mx.array(axis) for axis in zip(*forbidden, strict=True))
            logits = logits.astype(mx.float32).at[indices, tokens].add(-mx.inf)
        return logits

    def _forbidden(self, batch: _Batch, positions: Sequence[int]) -> Iterator[tuple[int, int]]:
        """(place in the batch, token) of all that would end a request before its minimum of tokens."""
        for index, (params, position) in enumerate(zip(batch.params, positions, strict=True)):
            if position < params.min_tokens:
                ending = params.stop_token_ids if params.ignore_eos else params.stop_token_ids + self._eos_token_ids
                yield from ((index, token) for token in set(ending) if 0 <= token < self._vocab_size)

    def changed_arrays(self) -> list[mx.array]:
        """State that the last `sample` changed; to be evaluated with its tokens."""
        return self._counts.arrays()

    def check_invariants(self) -> None:
        """Asserts that counts belong to taken rows."""
        self._counts.check_invariants()
        if self._batch is not None:
            assert set(self._batch.rows) <= set(self._params)


def _draw(logits: mx.array, batch: _Batch, positions: Sequence[int]) -> mx.array:
    """Tokens, uint32, of the rows that draw; `logits` are theirs alone, `positions` those of the whole batch."""
    logits = logits.astype(mx.float32)
    weights = mx.exp((logits - logits.max(axis=-1, keepdims=True)) / batch.temperatures)
    weights = batch.filters.apply(weights)
    uniforms = [uniform(batch.params[i].seed, positions[i]) for i in batch.drawn]
    cumulative = mx.cumsum(weights, axis=-1)
    threshold = mx.array(uniforms, mx.float32)[:, None] * cumulative[:, -1:]
    # The first token past the threshold. Excluded ones are asked for as well, because a parallel sum need not be
    # monotonic where nothing is added.
    return mx.argmax((cumulative > threshold) & (weights > 0), axis=-1)
