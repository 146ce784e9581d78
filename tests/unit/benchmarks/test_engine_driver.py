"""With the simulated device: the engine core and its scheduler are the real ones."""

from itertools import islice

import pytest

from benchmarks.engine_config import EngineBenchConfig
from benchmarks.engine_driver import EngineDriver
from benchmarks.engine_scenarios import DRIVEN
from engine_core.config import EngineCoreConfig
from engine_core.sim_device import open_sim_device

MODEL = "sim:prefill_ms_per_token=0.01,decode_ms=2,decode_ms_per_row=0,restore_ms_per_token=0"


def driver_of(model: str) -> EngineDriver:
    config = EngineCoreConfig(engines_address="inproc://none", model=model, max_num_seqs=9)
    return EngineDriver(open_sim_device(config, lambda share, detail: None), max_num_seqs=9, seed=1)


@pytest.fixture
def driver() -> EngineDriver:
    return driver_of(MODEL)


def test_a_full_batch_decodes_from_the_first_step_on(driver: EngineDriver) -> None:
    driver.fill(8, 300)
    steps = list(islice(driver.steps(), 5))
    assert [(step.decode_rows, step.prefill_tokens) for step in steps] == [(8, 0)] * 5
    assert all(step.wall_s >= 0.002 for step in steps)
    driver.clear()
    assert driver.live == 0
    assert list(driver.steps()) == []


def test_a_request_ends_at_its_number_of_tokens(driver: EngineDriver) -> None:
    driver.add(driver.tokens(20), max_tokens=3)
    steps = list(driver.steps())
    assert driver.live == 0
    assert sum(step.decode_rows for step in steps) == 3
    assert sum(step.prefill_tokens for step in steps) == 19


def test_lookahead_hides_the_work_of_the_host() -> None:
    driver = driver_of("sim:decode_ms=20")
    driver.fill(2, 16)
    found = {}
    for lookahead in (False, True):
        steps = list(islice(driver.steps(lookahead=lookahead, host_work_s=0.015), 10))
        driver.finish_in_flight()
        found[lookahead] = min(step.wall_s for step in steps[1:])
    assert found[False] > 0.035
    assert found[True] < 0.030
    driver.clear()


def test_a_prompt_that_is_too_long_is_refused(driver: EngineDriver) -> None:
    with pytest.raises(ValueError, match="10000 tokens is too long"):
        driver.add(driver.tokens(10_000))


@pytest.mark.parametrize("scenario", DRIVEN)
def test_scenarios_leave_nothing_behind(driver: EngineDriver, scenario: str) -> None:
    config = EngineBenchConfig(batches=(1, 8), contexts=(32,), prompts=(64,), long_context=300, steps=3, repeats=2)
    figures = list(DRIVEN[scenario](driver, config))  # type: ignore[index]
    assert figures and all(each.measurements == 2 and each.scenario == scenario for each in figures)
    assert driver.live == 0
    assert list(driver.steps()) == []


def test_figures_are_those_of_the_device(driver: EngineDriver) -> None:
    config = EngineBenchConfig(batches=(4,), contexts=(32,), steps=5, repeats=3)
    step, rate = DRIVEN["decode"](driver, config)
    assert (step.name, step.unit) == ("step, 4 rows at context 32", "ms")
    assert step.least >= 2.0
    assert rate.value == pytest.approx(4000 / step.value, rel=0.2)
