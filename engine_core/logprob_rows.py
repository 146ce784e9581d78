"""Log probabilities of sampled tokens, for those rows of a batch that ask, from the logits as the model gave them."""

from collections.abc import Sequence

import mlx.core as mx
import msgspec

from engine_core.largest_weights import candidates, row_maxima, row_sums
from engine_core.weighted_draw import weights_of
from protocol.logprobs import LOGPROB_FLOOR, MAX_LOGPROBS, TokenLogprobs


class LogprobArrays(msgspec.Struct, frozen=True):
    """What comes of a step, for the rows that ask; not evaluated when it is made."""

    places: Sequence[int]
    """In the batch."""
    wanted: Sequence[int]
    """Alternatives that each row asked for."""
    own: mx.array
    """float32 [rows]: of the sampled tokens."""
    ranks: mx.array
    """[rows]"""
    top_ids: mx.array
    """[rows, MAX_LOGPROBS], in no order; fewer in a small vocabulary."""
    top: mx.array
    """float32, as `top_ids`."""

    def arrays(self) -> list[mx.array]:
        """To be evaluated."""
        return [self.own, self.ranks, self.top_ids, self.top]

    def by_place(self) -> dict[int, TokenLogprobs]:
        """Place in the batch to what its row asked for; waits for the device."""
        columns = (self.own.tolist(), self.ranks.tolist(), self.top_ids.tolist(), self.top.tolist())
        return {
            place: _token_logprobs(wanted, *row)
            for place, wanted, *row in zip(self.places, self.wanted, *columns, strict=True)  # type: ignore[arg-type]
        }


class LogprobRows:
    """Those rows of a batch that ask."""

    def __init__(self, places: Sequence[int], wanted: Sequence[int]) -> None:
        self._places = tuple(places)
        self._wanted = tuple(wanted)
        self._indices = mx.array(list(places))
        self._ones = mx.ones((len(places), 1))

    def of(self, logits: mx.array, tokens: mx.array) -> LogprobArrays:
        """Of the tokens [batch] sampled from logits [batch, vocabulary], before all changes to these."""
        own = logits[self._indices].astype(mx.float32)
        own = own - row_maxima(own)
        own_tokens = tokens[self._indices].astype(mx.int32)[:, None]
        logits_of_tokens = mx.take_along_axis(own, own_tokens, axis=1)
        ranks = 1 + row_sums(own > logits_of_tokens)
        log_sums = mx.log(row_sums(weights_of(own, self._ones)))
        ids, top = _top(own, min(MAX_LOGPROBS, own.shape[1]))
        return LogprobArrays(
            self._places, self._wanted, (logits_of_tokens - log_sums)[:, 0], ranks[:, 0], ids, top - log_sums
        )


def _top(values: mx.array, count: int) -> tuple[mx.array, mx.array]:
    """The `count` largest [rows, count] and their ids, in no order; always so many, whatever other rows ask for."""
    found = candidates(values, count, -mx.inf)
    places = mx.argpartition(-found.values, count - 1, axis=-1)[:, :count]
    return found.ids(places), mx.take_along_axis(found.values, places, axis=1)


def _token_logprobs(wanted: int, own: float, rank: int, top_ids: Sequence[int], top: Sequence[float]) -> TokenLogprobs:
    likeliest = sorted(zip(map(_finite, top), top_ids, strict=True), key=lambda pair: (-pair[0], pair[1]))[:wanted]
    return TokenLogprobs(_finite(own), rank, [token for _, token in likeliest], [value for value, _ in likeliest])


def _finite(logprob: float) -> float:
    return max(logprob, LOGPROB_FLOOR)
