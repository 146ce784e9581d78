"""Chooses the next token of every decoding row, in one go, doing only the work that some row asked for.

Order: logit bias, penalties, minimum tokens, allowed tokens, bad words, grammar, temperature, min-p, top-k, top-p,
draw. The draw is the inverse of the distribution function in vocabulary order at a uniform number that the host makes
from (seed, output position), so that a row's token depends on its own logits and parameters alone: not on the batch,
nor on the step. What was sampled before is kept on the device, so that a step can be built before the one before it
has run.
"""

from collections.abc import Callable, Iterator, Sequence

import mlx.core as mx
import msgspec

from engine_core.device import Admission, DecodeRow
from engine_core.grammar_masks import GrammarMasks
from engine_core.logprob_rows import LogprobArrays
from engine_core.penalties import PenaltyCounts, wants_penalties
from engine_core.sampling_batch import SamplingBatch
from engine_core.token_bans import OutputEnds, allowed_mask
from protocol.logprobs import TokenLogprobs
from protocol.sampling import SamplingParams


class Sampled(msgspec.Struct, frozen=True):
    """What came of one step."""

    tokens: mx.array
    """uint32 [rows], in the order of the decodes."""
    logprob_arrays: LogprobArrays | None = None

    def arrays(self) -> list[mx.array]:
        """To be evaluated, together with `Sampler.changed_arrays`."""
        return [self.tokens, *(self.logprob_arrays.arrays() if self.logprob_arrays is not None else ())]

    def token_ids(self) -> list[int]:
        """Waits for the device."""
        token_ids: list[int] = self.tokens.tolist()  # type: ignore[assignment]  # one-dimensional
        return token_ids

    def logprobs(self) -> dict[int, TokenLogprobs]:
        """Place among the decodes to what was asked for; waits for the device."""
        return self.logprob_arrays.by_place() if self.logprob_arrays is not None else {}


class Sampler:
    """Owner of the sampling state of all taken rows."""

    def __init__(self, vocab_size: int, eos_token_ids: Sequence[int], *, may_wait: bool) -> None:
        """`may_wait`: whether the host may wait for the device while a step is built; see token_filters."""
        self._vocab_size = vocab_size
        self._eos_token_ids = tuple(eos_token_ids)
        self._may_wait = may_wait
        self._params: dict[int, SamplingParams] = {}
        self._allowed: dict[int, mx.array] = {}
        self._counts = PenaltyCounts(vocab_size)
        self._ends = OutputEnds()
        self._batch: SamplingBatch | None = None

    def admit(self, admission: Admission) -> None:
        """A sequence takes a row; what it has of output already counts as if it had been sampled here."""
        row, sampling = admission.row, admission.sampling
        self._params[row] = sampling
        if wants_penalties(sampling):
            self._counts.admit(row, admission.prompt, admission.output)
        if sampling.allowed_token_ids is not None:
            self._allowed[row] = allowed_mask(sampling, self._vocab_size)
        if sampling.bad_words_token_ids:
            self._ends.admit(row, admission.output, sampling)

    def release(self, row: int) -> None:
        """Forgets a row."""
        del self._params[row]
        self._counts.release(row)
        self._allowed.pop(row, None)
        self._ends.release(row)
        self._batch = None

    def sample(self, logits: mx.array, decodes: Sequence[DecodeRow], grammars: GrammarMasks | None = None) -> Sampled:
        """The next tokens, of logits [rows, vocabulary] in the order of `decodes`. Nothing of it is evaluated yet."""
        batch = self._batch_of([decode.row for decode in decodes])
        positions = [decode.output_position for decode in decodes]
        adjusted = self._adjusted(logits, batch, positions)
        if grammars is not None:
            adjusted = grammars.apply(adjusted, logits)
        tokens = batch.choice.choose(adjusted, positions)
        if batch.penalties is not None:
            self._counts.add(batch.penalties, tokens)
        if batch.bad_words is not None:
            self._ends.add(batch.bad_words, tokens)
        return Sampled(tokens, batch.logprobs.of(logits, tokens) if batch.logprobs is not None else None)

    def _batch_of(self, rows: Sequence[int]) -> SamplingBatch:
        if self._batch is None or self._batch.rows != tuple(rows):
            params = [self._params[row] for row in rows]
            self._batch = SamplingBatch(rows, params, self._vocab_size, self._allowed, self._may_wait)
        return self._batch

    def _adjusted(self, logits: mx.array, batch: SamplingBatch, positions: Sequence[int]) -> mx.array:
        """Logits after all that is added to or taken from them; of any dtype while nothing changes them, else
        float32."""
        changes: list[Callable[[mx.array], mx.array]] = []
        if batch.bias is not None:
            changes.append(batch.bias.apply)
        if (penalties := batch.penalties) is not None:
            changes.append(lambda changed: self._counts.apply(changed, penalties))
        if early := list(self._too_early(batch, positions)):
            indices, tokens = (mx.array(axis) for axis in zip(*early, strict=True))
            changes.append(lambda changed: changed.at[indices, tokens].add(-mx.inf))
        if batch.allowed is not None:
            changes.append(batch.allowed.apply)
        if (bad_words := batch.bad_words) is not None:
            changes.append(lambda changed: self._ends.ban(changed, bad_words))
        for number, change in enumerate(changes):
            logits = change(logits if number else logits.astype(mx.float32))
        return logits

    def _too_early(self, batch: SamplingBatch, positions: Sequence[int]) -> Iterator[tuple[int, int]]:
        """(place in the batch, token) of all that would end a request before its minimum of tokens."""
        for index, (params, position) in enumerate(zip(batch.params, positions, strict=True)):
            if position < params.min_tokens:
                ending = params.stop_token_ids if params.ignore_eos else params.stop_token_ids + self._eos_token_ids
                yield from ((index, token) for token in set(ending) if 0 <= token < self._vocab_size)

    def changed_arrays(self) -> list[mx.array]:
        """State that the last `sample` changed; to be evaluated with its tokens."""
        return [*self._counts.arrays(), *self._ends.arrays()]

    def check_invariants(self) -> None:
        """Asserts that all state belongs to taken rows."""
        self._counts.check_invariants()
        taken = self._params.keys()
        assert self._allowed.keys() <= taken and self._ends.rows <= taken
        if self._batch is not None:
            assert set(self._batch.rows) <= taken
