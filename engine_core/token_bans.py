"""Tokens that must not come: all but those allowed, and the last tokens of bad words. Nothing waits for the device."""

from collections.abc import Sequence

import mlx.core as mx

from engine_core.row_selection import put_rows, take_rows
from protocol.sampling import SamplingParams

_NO_TOKEN = -1
_ANY_TOKEN = -2


def allowed_mask(params: SamplingParams, vocab_size: int) -> mx.array:
    """bool [vocabulary]: the tokens that may come. An id beyond the vocabulary names no token."""
    assert params.allowed_token_ids is not None
    allowed = [token for token in params.allowed_token_ids if 0 <= token < vocab_size]
    mask = mx.zeros(vocab_size, mx.bool_)
    if allowed:
        mask[mx.array(allowed)] = True
    return mask


class AllowedRows:
    """Those rows of a batch that allow some tokens only."""

    def __init__(self, indices: Sequence[int], masks: Sequence[mx.array]) -> None:
        """`indices` are places in the batch, `masks` as of allowed_mask."""
        self._indices = mx.array(list(indices))
        self._masks = mx.stack(list(masks))

    def apply(self, logits: mx.array) -> mx.array:
        """The logits [batch, vocabulary] with those of all other tokens at minus infinity."""
        own = mx.where(self._masks, take_rows(logits, self._indices), -mx.inf)
        return put_rows(logits, self._indices, own)


class BadWordRows:
    """Those rows of a batch that have bad words, each word with its row: [words], and what it begins with."""

    def __init__(
        self, indices: Sequence[int], rows: Sequence[int], params: Sequence[SamplingParams], vocab_size: int
    ) -> None:
        """`indices` are places in the batch, `rows` the device's rows. A word that no output can have is left out."""
        words = [
            (place, index, word)
            for place, (index, row) in enumerate(zip(indices, params, strict=True))
            for word in row.bad_words_token_ids
            if all(0 <= token < vocab_size for token in word)
        ]
        longest = max((len(word) for _, _, word in words), default=1)
        self.rows = tuple(rows)
        self.indices = mx.array(list(indices))
        self.has_words = bool(words)
        self.places = mx.array([place for place, _, _ in words], mx.int32)
        """Of each word's row in `rows`."""
        self.batch_places = mx.array([index for _, index, _ in words], mx.int32)
        self.last = mx.array([word[-1] for _, _, word in words], mx.int32)
        beginnings = [[_ANY_TOKEN] * (longest - len(word)) + list(word[:-1]) for _, _, word in words]
        self.beginnings = mx.array(beginnings, mx.int32).reshape(len(words), longest - 1)


class OutputEnds:
    """Owner of the last output tokens of rows with bad words, on the device."""

    def __init__(self) -> None:
        self._ends: dict[int, mx.array] = {}
        """By row: int32 [as many as its longest bad word needs]."""

    def admit(self, row: int, output: Sequence[int], sampling: SamplingParams) -> None:
        """A sequence with bad words takes a row."""
        needed = max(len(word) for word in sampling.bad_words_token_ids) - 1
        end = list(output)[max(0, len(output) - needed) :]
        self._ends[row] = mx.array([_NO_TOKEN] * (needed - len(end)) + end, mx.int32)

    def release(self, row: int) -> None:
        """Forgets a row, if it is known."""
        self._ends.pop(row, None)

    def ban(self, logits: mx.array, batch: BadWordRows) -> mx.array:
        """The logits, float32 [batch, vocabulary], with the last tokens of words that would be complete at -inf."""
        if not batch.has_words:
            return logits
        width = batch.beginnings.shape[1]
        ends = mx.stack([_padded(self._ends[row], width) for row in batch.rows])[batch.places]
        matches = ((ends == batch.beginnings) | (batch.beginnings == _ANY_TOKEN)).all(axis=1)
        return logits.at[batch.batch_places, batch.last].add(mx.where(matches, -mx.inf, 0.0))

    def add(self, batch: BadWordRows, tokens: mx.array) -> None:
        """Takes the tokens [batch] just sampled, those of these rows. Not evaluated: see `arrays`."""
        own = tokens[batch.indices].astype(mx.int32)
        for place, row in enumerate(batch.rows):
            end = self._ends[row]
            self._ends[row] = mx.concatenate([end, own[place : place + 1]])[1:]

    def arrays(self) -> list[mx.array]:
        """What `add` changed; to be evaluated with the sampled tokens."""
        return list(self._ends.values())

    @property
    def rows(self) -> frozenset[int]:
        """Rows whose ends are kept."""
        return frozenset(self._ends)


def _padded(end: mx.array, width: int) -> mx.array:
    missing = width - end.shape[0]
    if missing <= 0:
        return end[-missing:] if missing else end
    return mx.concatenate([mx.full(missing, _NO_TOKEN, mx.int32), end])
