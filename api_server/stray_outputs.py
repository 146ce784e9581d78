"""Outputs of generations that are no longer here: which of them mean that an abort got lost."""

from protocol.identifiers import RequestId

REPEAT_AFTER_S = 1.0
"""For so long after an abort, outputs that were on their way already are nothing to worry about."""
MAX_REMEMBERED = 16_384


class StrayOutputs:
    """Remembers what ended lately, so that an engine core that goes on regardless is told again, but not in a flood.

    An abort that a dying coordinator took with it, or that came before the next one knew of the request, would
    otherwise leave the engine core working for nobody.
    """

    def __init__(self) -> None:
        self._quiet_until_s: dict[RequestId, float] = {}

    def ended(self, request_id: RequestId, now_s: float) -> None:
        """A generation ended here; its abort, if it needed one, is on its way."""
        self._quiet_until_s.pop(request_id, None)
        self._quiet_until_s[request_id] = now_s + REPEAT_AFTER_S
        if len(self._quiet_until_s) > MAX_REMEMBERED:
            del self._quiet_until_s[next(iter(self._quiet_until_s))]

    def needs_abort(self, request_id: RequestId, now_s: float) -> bool:
        """Whether an abort is due now for a generation that is not here; asking counts as sending it."""
        if now_s < self._quiet_until_s.get(request_id, float("-inf")):
            return False
        self.ended(request_id, now_s)
        return True

    def check_invariants(self) -> None:
        """For tests."""
        assert len(self._quiet_until_s) <= MAX_REMEMBERED
