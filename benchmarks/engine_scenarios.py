"""What requests cost an engine core: decoding, prefill, prompts that come together or join running rows, lookahead."""

import statistics
import time
from collections.abc import Callable, Iterable, Iterator
from itertools import islice

from benchmarks.engine_config import EngineBenchConfig, Scenario
from benchmarks.engine_driver import EngineDriver, StepTime
from benchmarks.engine_report import Figure, figure

SHORT_PROMPTS = 8
SHORT_PROMPT_TOKENS = 24
JOINED_ROWS = 8
"""Rows that run when the long prompt joins, or half of the largest batch when that is less."""


def decode(driver: EngineDriver, config: EngineBenchConfig) -> Iterator[Figure]:
    """A step in which every row decodes, by rows and tokens in front of them."""
    for context in config.contexts:
        for rows in config.batches:
            driver.fill(rows, context)
            times = [_median_ms(islice(driver.steps(), config.steps)) for _ in range(config.repeats)]
            driver.clear()
            yield figure("decode", f"step, {rows} rows at context {context}", "ms", times)
            rates = [rows / time_ms * 1000 for time_ms in times]
            yield figure("decode", f"rate, {rows} rows at context {context}", "tokens/s", rates)


def prefill(driver: EngineDriver, config: EngineBenchConfig) -> Iterator[Figure]:
    """From a prompt's arrival to its first token, alone."""
    for length in config.prompts:
        times = [_to_the_end_ms(driver, 1, length) for _ in range(config.repeats)]
        yield figure("prefill", f"first token of a prompt of {length}", "ms", times)
        yield figure("prefill", f"rate of a prompt of {length}", "tokens/s", [length / t * 1000 for t in times])


def together(driver: EngineDriver, config: EngineBenchConfig) -> Iterator[Figure]:
    """Short prompts at once and one after the other, in turns."""
    prompts = min(SHORT_PROMPTS, config.max_num_seqs)
    at_once, in_turn = [], []
    for _ in range(config.repeats):
        at_once.append(_to_the_end_ms(driver, prompts, SHORT_PROMPT_TOKENS))
        in_turn.append(sum(_to_the_end_ms(driver, 1, SHORT_PROMPT_TOKENS) for _ in range(prompts)))
    name = f"{prompts} prompts of {SHORT_PROMPT_TOKENS}"
    yield figure("together", f"{name} at once", "ms", at_once)
    yield figure("together", f"{name} one after the other", "ms", in_turn)
    ratios = [once / turn for once, turn in zip(at_once, in_turn, strict=True)]
    yield figure("together", f"{name}, at once / one after the other", "x", ratios)


def joining(driver: EngineDriver, config: EngineBenchConfig) -> Iterator[Figure]:
    """A long prompt that joins running rows, and a short one that joins and leaves rows with long contexts."""
    yield from _long_prompt_joins(driver, config)
    yield from _short_one_comes_and_goes(driver, config)


def _long_prompt_joins(driver: EngineDriver, config: EngineBenchConfig) -> Iterator[Figure]:
    rows = max(1, min(JOINED_ROWS, max(config.batches) // 2))
    gaps, firsts = [], []
    for _ in range(config.repeats):
        driver.fill(rows, min(config.contexts))
        usual_ms = _median_ms(islice(driver.steps(), config.steps))
        driver.add(driver.tokens(config.long_prompt))
        joined = list(_until(driver.steps(), lambda step: step.decode_rows == rows + 1))
        driver.clear()
        gaps.append(max(step.wall_s for step in joined) * 1000 / usual_ms)
        firsts.append(sum(step.wall_s for step in joined))
    name = f"{config.long_prompt} tokens join {rows} rows"
    yield figure("joining", f"{name}: longest step / usual step", "x", gaps)
    yield figure("joining", f"{name}: until the first token", "s", firsts)


def _short_one_comes_and_goes(driver: EngineDriver, config: EngineBenchConfig) -> Iterator[Figure]:
    rows = max(config.batches)
    driver.fill(rows, config.long_context)
    joins, leaves = [], []
    for _ in range(config.repeats):
        usual_ms = _median_ms(islice(driver.steps(), config.steps))
        newcomer = driver.add(driver.tokens(2))
        joined = list(_until(driver.steps(), lambda step: step.decode_rows == rows + 1))
        joins.append(sum(step.wall_s for step in joined) * 1000 - usual_ms)
        driver.abort([newcomer])
        leaves.append(next(driver.steps()).wall_s * 1000 - usual_ms)
    driver.clear()
    name = f"{rows} rows at context {config.long_context}"
    yield figure("joining", f"2 tokens join {name}: beyond a usual step", "ms", joins)
    yield figure("joining", f"a row leaves {name}: beyond a usual step", "ms", leaves)


def lookahead(driver: EngineDriver, config: EngineBenchConfig) -> Iterator[Figure]:
    """Steps with a stated work of the host in between, with and without lookahead, in turns."""
    rows = sorted(config.batches)[len(config.batches) // 2]
    times: dict[bool, list[float]] = {False: [], True: []}
    driver.fill(rows, min(config.contexts))
    for _ in range(config.repeats):
        for ahead, found in times.items():
            steps = driver.steps(lookahead=ahead, host_work_s=config.host_work_ms / 1000)
            found.append(_median_ms(islice(steps, 1, config.steps + 1)))
            driver.finish_in_flight()
    driver.clear()
    for ahead, found in times.items():
        name = f"step, {rows} rows, {config.host_work_ms:g} ms of host work, lookahead {'on' if ahead else 'off'}"
        yield figure("lookahead", name, "ms", found)


def step_ms(driver: EngineDriver, rows: int, context: int, steps: int) -> float:
    """Median step of so many rows that all decode."""
    driver.fill(rows, context)
    found_ms = _median_ms(islice(driver.steps(), steps))
    driver.clear()
    return found_ms


def _to_the_end_ms(driver: EngineDriver, prompts: int, length: int) -> float:
    """From the arrival of so many prompts until each has its first token, which is its last."""
    for _ in range(prompts):
        driver.add(driver.tokens(length), max_tokens=1)
    started_s = time.perf_counter()
    for _ in driver.steps():
        if not driver.live:
            break
    elapsed_ms = (time.perf_counter() - started_s) * 1000
    driver.clear()
    return elapsed_ms


def _median_ms(steps: Iterable[StepTime]) -> float:
    return statistics.median(step.wall_s for step in steps) * 1000


def _until(steps: Iterator[StepTime], is_last: Callable[[StepTime], bool]) -> Iterator[StepTime]:
    for step in steps:
        yield step
        if is_last(step):
            return


DRIVEN: dict[Scenario, Callable[[EngineDriver, EngineBenchConfig], Iterator[Figure]]] = {
    "decode": decode,
    "prefill": prefill,
    "together": together,
    "joining": joining,
    "lookahead": lookahead,
}
"""Scenarios of requests; the others ask the device or the sampler alone."""
