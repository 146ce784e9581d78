"""What orders to the device cost by themselves: rows moved or copied, blocks saved or restored; plans made by hand."""

import time
from collections.abc import Iterator, Sequence

from benchmarks.engine_config import EngineBenchConfig
from benchmarks.engine_driver import MAX_NUM_BATCHED_TOKENS, EngineDriver
from benchmarks.engine_report import Figure, figure
from engine_core.device import (
    Admission,
    BlockId,
    BlockRestore,
    BlockSave,
    Device,
    PrefillChunk,
    RowCopy,
    RowMove,
    Slot,
    StepPlan,
)
from protocol.sampling import SamplingParams

_FIRST_BLOCK = 10**12
"""Far from what a scheduler has given."""
_SOURCE, _TARGET = 0, 1
"""Rows."""


def orders(driver: EngineDriver, config: EngineBenchConfig) -> Iterator[Figure]:
    """Nothing else may use the device meanwhile."""
    bench = _OrderBench(driver)
    try:
        yield from bench.figures(config)
    finally:
        bench.close()


class _OrderBench:
    """Owner of the device while it measures; two rows, in a pool of slots each where there are several pools."""

    def __init__(self, driver: EngineDriver) -> None:
        self._device: Device = driver.opened.device
        lengths = self._device.pool_lengths
        self._tokens = min(lengths[0], 256)
        self._far = min(1, len(lengths) - 1)
        """Pool that rows are moved to; the only one has a second slot."""
        self._slots = tuple(2 if pool == 0 else int(pool == self._far) for pool in range(len(lengths)))
        prompt = driver.tokens(self._tokens + 1)
        self._run(StepPlan(pool_slots=self._slots, admissions=[self._admission(_SOURCE, prompt)]))
        for start in range(0, self._tokens, MAX_NUM_BATCHED_TOKENS):
            chunk = prompt[start : min(start + MAX_NUM_BATCHED_TOKENS, self._tokens)]
            self._run(self._plan(prefills=[PrefillChunk(_SOURCE, start, chunk)]))
        self._target = self._admission(_TARGET, prompt)

    def figures(self, config: EngineBenchConfig) -> Iterator[Figure]:
        count = config.steps
        empty = [self._run(self._plan()) for _ in range(count)]
        yield figure("orders", "plan without orders", "ms", empty)
        moves = [self._move(number) for number in range(count)]
        yield figure("orders", f"row of {self._tokens} tokens moved to another slot", "ms", moves)
        if not self._device.prefix_block_tokens or self._device.checkpoint_tokens:
            return
        copies = [self._into_target(copies=[RowCopy(_SOURCE, _TARGET, self._tokens)]) for _ in range(count)]
        yield figure("orders", f"{self._tokens} tokens copied to a new row", "ms", copies)
        yield from self._blocks(count)

    def _blocks(self, count: int) -> Iterator[Figure]:
        size = self._device.prefix_block_tokens
        blocks = self._tokens // size
        saves = []
        for number in range(count):
            ids = [BlockId(_FIRST_BLOCK + number * blocks + block) for block in range(blocks)]
            orders = [BlockSave(block_id, _SOURCE, block * size) for block, block_id in enumerate(ids)]
            saves.append(self._run(self._plan(saves=orders)) / blocks)
            if number < count - 1:
                self._run(self._plan(drops=ids))
        yield figure("orders", f"block of {size} tokens saved", "ms", saves)
        restore = BlockRestore(_TARGET, ids, blocks * size)
        restores = [self._into_target(restores=[restore]) / blocks for _ in range(count)]
        yield figure("orders", f"block of {size} tokens restored", "ms", restores)
        self._run(self._plan(drops=ids))

    def _move(self, number: int) -> float:
        target = Slot(self._far, 0 if self._far else 1) if number % 2 == 0 else Slot(0, 0)
        return self._run(self._plan(moves=[RowMove(_SOURCE, target)]))

    def _into_target(self, copies: Sequence[RowCopy] = (), restores: Sequence[BlockRestore] = ()) -> float:
        """Takes the second row, with these orders, and gives it back; what the first takes."""
        plan = self._plan(admissions=[self._target], copies=copies, restores=restores)
        elapsed_ms = self._run(plan)
        self._run(self._plan(releases=[_TARGET]))
        return elapsed_ms

    def _admission(self, row: int, prompt: Sequence[int]) -> Admission:
        slot = Slot(0, 0) if row == _SOURCE else Slot(0, 1)
        return Admission(row, slot, prompt, (), SamplingParams(max_tokens=1, temperature=0))

    def _plan(
        self,
        *,
        drops: Sequence[BlockId] = (),
        saves: Sequence[BlockSave] = (),
        releases: Sequence[int] = (),
        moves: Sequence[RowMove] = (),
        admissions: Sequence[Admission] = (),
        copies: Sequence[RowCopy] = (),
        restores: Sequence[BlockRestore] = (),
        prefills: Sequence[PrefillChunk] = (),
    ) -> StepPlan:
        return StepPlan(
            drops=drops,
            saves=saves,
            releases=releases,
            pool_slots=self._slots,
            moves=moves,
            admissions=admissions,
            copies=copies,
            restores=restores,
            prefills=prefills,
        )

    def _run(self, plan: StepPlan) -> float:
        """Wall time, ms."""
        started_s = time.perf_counter()
        self._device.submit(plan)
        self._device.collect()
        return (time.perf_counter() - started_s) * 1000

    def close(self) -> None:
        """Gives everything back."""
        self._run(StepPlan(releases=[_SOURCE], pool_slots=(0,) * len(self._slots)))
