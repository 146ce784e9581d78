"""What the sampling parameters of a list of rows come to, as arrays; made anew only when the list changes."""

from collections.abc import Callable, Mapping, Sequence

import mlx.core as mx

from engine_core.logprob_rows import LogprobRows
from engine_core.penalties import PenaltyRows, wants_penalties
from engine_core.token_bans import AllowedRows, BadWordRows
from engine_core.token_choice import TokenChoice
from protocol.sampling import SamplingParams


class SamplingBatch:
    """The rows that want something, for each thing to want; None where no row does."""

    def __init__(
        self,
        rows: Sequence[int],
        params: Sequence[SamplingParams],
        vocab_size: int,
        allowed: Mapping[int, mx.array],
        may_wait: bool,
    ) -> None:
        """`allowed`: the mask (token_bans.allowed_mask) of each row that has one. `may_wait`: see RowFilters.apply."""
        self.rows = tuple(rows)
        self.params = tuple(params)
        self.bias = LogitBias.of(params, vocab_size)
        places = self._places(wants_penalties)
        self.penalties = PenaltyRows(places, *self._of(places)) if places else None
        places = self._places(lambda p: bool(p.bad_words_token_ids))
        self.bad_words = BadWordRows(places, *self._of(places), vocab_size) if places else None
        places = self._places(lambda p: p.allowed_token_ids is not None)
        self.allowed = AllowedRows(places, [allowed[rows[i]] for i in places]) if places else None
        asking = {i: p.logprobs for i, p in enumerate(params) if p.logprobs is not None}
        self.logprobs = LogprobRows(list(asking), list(asking.values())) if asking else None
        self.choice = TokenChoice(params, may_wait)

    def _places(self, wants: Callable[[SamplingParams], bool]) -> list[int]:
        return [i for i, params in enumerate(self.params) if wants(params)]

    def _of(self, places: Sequence[int]) -> tuple[list[int], list[SamplingParams]]:
        return [self.rows[i] for i in places], [self.params[i] for i in places]


class LogitBias:
    """The logit biases of all rows as one scatter."""

    def __init__(self, entries: Sequence[tuple[int, int, float]]) -> None:
        """(place in the batch, token, bias)"""
        self._indices = mx.array([index for index, _, _ in entries])
        self._tokens = mx.array([token for _, token, _ in entries])
        self._values = mx.array([value for _, _, value in entries], mx.float32)

    @classmethod
    def of(cls, params: Sequence[SamplingParams], vocab_size: int) -> "LogitBias | None":
        """None when no row has a bias. An id beyond the vocabulary names no token, so there is nothing to bias."""
        entries = [
            (index, token, bias)
            for index, row in enumerate(params)
            for token, bias in row.logit_bias.items()
            if 0 <= token < vocab_size
        ]
        return cls(entries) if entries else None

    def apply(self, logits: mx.array) -> mx.array:
        """The logits, float32 [batch, vocabulary], with the biases added."""
        return logits.at[self._indices, self._tokens].add(self._values)
