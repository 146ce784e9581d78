"""What sampling costs: tokens chosen from random logits, for as many rows as decode at most."""

import random
import statistics
import time
from collections.abc import Callable, Iterator, Mapping

import mlx.core as mx

from benchmarks.engine_config import EngineBenchConfig
from benchmarks.engine_driver import EngineDriver
from benchmarks.engine_report import Figure, figure
from benchmarks.engine_scenarios import step_ms
from engine_core.device import Admission, DecodeRow, Slot
from engine_core.sampler import Sampler
from protocol.sampling import SamplingParams

PROMPT_TOKENS = 500
"""In front of each row: what penalties look at."""
SPREAD = 3.0
"""Standard deviation of the logits, to which each row has some likely tokens added, as a language model has."""
LIKELY, LIKELY_BONUS = 50, 10.0

Mix = Callable[[int], SamplingParams]


def _greedy(row: int) -> SamplingParams:
    return SamplingParams(max_tokens=1, temperature=0)


def _temperature(row: int) -> SamplingParams:
    return SamplingParams(max_tokens=1, temperature=0.8)


def _mixed(row: int) -> SamplingParams:
    """What different clients ask for: greedy, top-p alone, top-k and top-p, min-p."""
    kinds = (
        SamplingParams(max_tokens=1, temperature=0),
        SamplingParams(max_tokens=1, temperature=0.8, top_p=0.95),
        SamplingParams(max_tokens=1, temperature=0.7, top_k=40, top_p=0.9),
        SamplingParams(max_tokens=1, temperature=1.0, min_p=0.05),
    )
    return kinds[row % len(kinds)]


def _all_on(row: int) -> SamplingParams:
    """Everything, in every row; half of them with top-k, a third with min-p."""
    return SamplingParams(
        max_tokens=1,
        seed=row,
        temperature=0.5 + row % 32 / 40,
        top_p=0.9,
        top_k=40 if row % 2 else 0,
        min_p=0.02 if row % 3 == 0 else 0.0,
        repetition_penalty=1.1,
        presence_penalty=0.2,
        frequency_penalty=0.2,
        min_tokens=3,
        stop_token_ids=(5,),
        logit_bias={7: 1.0, row: -3.0},
        bad_words_token_ids=((1, 2),),
    )


def _two_with_logprobs(row: int) -> SamplingParams:
    return SamplingParams(max_tokens=1, temperature=0, logprobs=5 if row < 2 else None)


MIXES: Mapping[str, Mix] = {
    "greedy": _greedy,
    "temperature alone": _temperature,
    "mixed": _mixed,
    "all on": _all_on,
    "greedy, 2 rows with 5 logprobs": _two_with_logprobs,
}


def sampler(driver: EngineDriver, config: EngineBenchConfig) -> Iterator[Figure]:
    """Each mix in turns with the others, beside the decode step of as many rows."""
    rows, vocab_size = max(config.batches), driver.opened.card.vocab_size
    step = step_ms(driver, rows, min(config.contexts), config.steps)
    logits = _logits(rows, vocab_size, config.seed)
    benches = {name: _Bench(mix, rows, vocab_size, driver, config.seed) for name, mix in MIXES.items()}
    times: dict[str, list[float]] = {name: [] for name in benches}
    for _ in range(config.repeats):
        for name, bench in benches.items():
            times[name].append(statistics.median(bench.sample_ms(logits) for _ in range(config.steps)))
    for name, found in times.items():
        yield figure("sampler", f"{rows} rows, {name}", "ms", found)
        shares = [each / step * 100 for each in found]
        yield figure("sampler", f"{rows} rows, {name}: share of a decode step", "%", shares)


def _logits(rows: int, vocab_size: int, seed: int) -> mx.array:
    rng = random.Random(seed)
    logits = mx.random.normal((rows, vocab_size), key=mx.random.key(seed)) * SPREAD
    likely = mx.array([rng.choices(range(vocab_size), k=LIKELY) for _ in range(rows)])
    logits = mx.put_along_axis(logits, likely, mx.take_along_axis(logits, likely, axis=1) + LIKELY_BONUS, axis=1)
    mx.eval(logits)
    return logits


class _Bench:
    """A sampler whose rows all have a prompt."""

    def __init__(self, mix: Mix, rows: int, vocab_size: int, driver: EngineDriver, seed: int) -> None:
        self._sampler = Sampler(
            vocab_size, driver.opened.card.eos_token_ids, may_wait=driver.opened.device.submit_blocks
        )
        self._rows = range(rows)
        self._position = 0
        prompt = random.Random(seed).choices(range(vocab_size), k=PROMPT_TOKENS)
        for row in self._rows:
            self._sampler.admit(Admission(row, Slot(0, row), prompt, (), mix(row)))

    def sample_ms(self, logits: mx.array) -> float:
        """One step's sampling, to the host's knowing of it."""
        started_s = time.perf_counter()
        sampled = self._sampler.sample(logits, [DecodeRow(row, 0, 0, self._position) for row in self._rows])
        mx.eval(sampled.arrays(), self._sampler.changed_arrays())
        sampled.tokens.tolist()
        sampled.logprobs()
        self._position += 1
        return (time.perf_counter() - started_s) * 1000
