"""The tokens that the last step sampled, on the device: what the next one feeds before the host has seen them."""

from collections.abc import Sequence

import mlx.core as mx

from engine_core.device import DecodeRow
from engine_core.model_runner import PlanError


class TokenFeedback:
    """Owner of the last step's tokens."""

    def __init__(self) -> None:
        self._tokens: mx.array | None = None
        self._places: dict[int, int] = {}
        """Of each row that decoded."""

    def fed(self, decodes: Sequence[DecodeRow]) -> mx.array:
        """uint32 [len(decodes)], not evaluated: what each row feeds. Raises PlanError for one that nobody knows."""
        unknown = [index for index, decode in enumerate(decodes) if decode.token_id is None]
        known = mx.array([decode.token_id or 0 for decode in decodes], mx.uint32)
        if not unknown:
            return known
        rows = [decodes[index].row for index in unknown]
        if self._tokens is None or not self._places.keys() >= set(rows):
            raise PlanError(f"rows {rows} are to feed what the step before sampled, but it sampled {[*self._places]}")
        sampled = self._tokens[mx.array([self._places[row] for row in rows])]
        if len(unknown) == len(decodes):
            return sampled
        known[mx.array(unknown)] = sampled
        return known

    def sampled(self, decodes: Sequence[DecodeRow], tokens: mx.array | None) -> None:
        """What this step samples, in the order of `decodes`; None for nothing."""
        self._tokens = tokens
        self._places = {decode.row: place for place, decode in enumerate(decodes)}
