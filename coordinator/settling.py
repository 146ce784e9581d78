"""Whether the coordinator has been there long enough to know who else is. See coordinator.cluster."""

import math


class Settling:
    """Owner of the settling time."""

    def __init__(self, until_s: float) -> None:
        self._until_s = until_s

    @property
    def is_active(self) -> bool:
        """Members of an earlier coordinator may still be about to say Hello."""
        return self._until_s < math.inf

    def is_due(self, now_s: float) -> bool:
        """Whether the time is up but `end` has not been called."""
        return self._until_s <= now_s

    def end(self) -> None:
        """Who was to come has come."""
        self._until_s = math.inf

    def next_deadline_s(self) -> float:
        """When the time is up; infinity when it is over."""
        return self._until_s
