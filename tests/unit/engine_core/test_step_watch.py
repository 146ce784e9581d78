"""When a busy loop counts as stuck."""

import msgspec
import pytest

from engine_core.events import CoreStatus
from engine_core.step_watch import WARM_UP_FACTOR, WARM_UP_STEPS, StepWatch
from protocol.messages import Load

BUSY = CoreStatus(Load(running=1, steps_total=WARM_UP_STEPS), [], 0, 1, progressed_s=100.0)


def test_a_step_that_takes_too_long_is_hung() -> None:
    watch = StepWatch(5.0)
    assert watch.hung_for_s(BUSY, 105.0) is None
    assert watch.hung_for_s(BUSY, 105.5) == 5.5


@pytest.mark.parametrize("load", [Load(waiting=1, steps_total=99), Load(running=1, steps_total=99)])
def test_who_only_waits_counts_too(load: Load) -> None:
    assert StepWatch(5.0).hung_for_s(msgspec.structs.replace(BUSY, load=load), 106.0) is not None


def test_without_work_nothing_is_hung() -> None:
    assert StepWatch(5.0).hung_for_s(msgspec.structs.replace(BUSY, load=Load(steps_total=99)), 1_000.0) is None


def test_the_first_steps_have_more_time() -> None:
    early = msgspec.structs.replace(BUSY, load=Load(running=1, steps_total=WARM_UP_STEPS - 1))
    assert StepWatch(5.0).hung_for_s(early, 100.0 + 5.0 * WARM_UP_FACTOR) is None
    assert StepWatch(5.0).hung_for_s(early, 100.5 + 5.0 * WARM_UP_FACTOR) is not None
