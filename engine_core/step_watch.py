"""Whether the busy loop is stuck in a step.

The input thread asks, each time that it looks at the busy loop's status: it wakes once a second anyway, and runs while
MLX computes. Should a step hang with the interpreter's lock held, the input thread is stuck too, and the coordinator
misses the reports.
"""

from engine_core.events import CoreStatus

WARM_UP_STEPS = 8
WARM_UP_FACTOR = 5.0
"""The first steps may compile kernels and page weights in: they have so many times the time."""


class StepWatch:
    """Knows how long a step may take; holds no other state."""

    def __init__(self, step_timeout_s: float) -> None:
        self._step_timeout_s = step_timeout_s

    def hung_for_s(self, status: CoreStatus, now_s: float) -> float | None:
        """Since when nothing has come of the work that there is, if that is too long; else None.

        `now_s` is by the clock of the status.
        """
        if not (status.load.running or status.load.waiting):
            return None
        factor = WARM_UP_FACTOR if status.load.steps_total < WARM_UP_STEPS else 1.0
        age_s = now_s - status.progressed_s
        return age_s if age_s > factor * self._step_timeout_s else None
