import random
from typing import Any

import mlx.core as mx
import numpy as np
import pytest
from slot_world import LENGTHS, LEVELS_OF_MODELS, World, admission, last_logits
from tiny_models import CONFIGS, VOCAB, logits_alone, tiny_model

from engine_core.device import DecodeRow, PrefillChunk, RowCopy, RowMove, Slot, StepPlan
from engine_core.mlx_lm_adapter import trace_model
from engine_core.model_runner import PlanError
from engine_core.slot_runner import Level

CLOSE = 1e-4
"""Largest difference of logits of some units in float32."""


class _Sequence:
    def __init__(self, model: Any, token_ids: list[int]) -> None:
        self.token_ids = token_ids
        self.expected = np.array(logits_alone(model, token_ids))
        self.prefill_to = len(token_ids) // 2
        self.row = -1
        self.slot = Slot(0, 0)
        self.fed = 0


class _Walk:
    """Random joins, leaves, moves, copies and chunks; every decode row's logits are compared."""

    def __init__(self, world: World, seed: int) -> None:
        self.world, self.draw = world, random.Random(seed)
        begin = self._tokens(40)
        self.waiting = [
            _Sequence(world.model, begin[: self.draw.choice([0, 20, 40])] + self._tokens(self.draw.randint(2, 90)))
            for _ in range(20)
        ]
        self.running: dict[int, _Sequence] = {}
        self.ended: list[int] = []
        self.worst = 0.0

    def _tokens(self, count: int) -> list[int]:
        return [self.draw.randrange(VOCAB) for _ in range(count)]

    def step(self) -> None:
        orders: dict[str, list[Any]] = {"moves": [], "admissions": [], "copies": []}
        for sequence in self.running.values():
            if sequence.fed + 20 > LENGTHS[sequence.slot.pool] or self.draw.random() < 0.05:
                sequence.slot = self._free_slot(sequence.fed + 20)
                orders["moves"].append(RowMove(sequence.row, sequence.slot))
        if self.waiting and len(self.running) < 6 and self.draw.random() < 0.5:
            self._join(orders)
        tops = [max([0, *(s.slot.index + 1 for s in self.running.values() if s.slot.pool == p)]) for p in range(3)]
        self.world.prepare(tops, releases=self._take_ended(), **orders)
        self._feed()

    def _take_ended(self) -> list[int]:
        ended, self.ended = self.ended, []
        return ended

    def _join(self, orders: dict[str, list[Any]]) -> None:
        sequence = self.waiting.pop()
        donors = list(self.running.values())
        sequence.row = self.draw.choice([row for row in range(8) if row not in (*self.running, *self.ended)])
        sequence.slot = self._free_slot(20)
        self.running[sequence.row] = sequence
        orders["admissions"].append(admission(sequence.row, sequence.slot))
        if donors and not self.world.runner.has_states:
            donor = self.draw.choice(donors)
            shared, most = 0, min(donor.fed, sequence.prefill_to, LENGTHS[sequence.slot.pool])
            while shared < most and donor.token_ids[shared] == sequence.token_ids[shared]:
                shared += 1
            if shared:
                orders["copies"].append(RowCopy(donor.row, sequence.row, shared))
                sequence.fed = shared

    def _free_slot(self, tokens: int) -> Slot:
        pools = [pool for pool, length in enumerate(LENGTHS) if length >= tokens]
        taken = {sequence.slot for sequence in self.running.values()}
        pool = self.draw.choice(pools[:2])
        return self.draw.choice([Slot(pool, i) for i in range(12) if Slot(pool, i) not in taken][:5])

    def _feed(self) -> None:
        chunks = []
        for sequence in [s for s in self.running.values() if s.fed < s.prefill_to][:3]:
            end = min(sequence.prefill_to, sequence.fed + self.draw.randint(1, 16))
            chunks.append(PrefillChunk(sequence.row, sequence.fed, sequence.token_ids[sequence.fed : end]))
            sequence.fed = end
        decoding = [s for s in self.running.values() if s.fed >= s.prefill_to and self.draw.random() < 0.8]
        self.draw.shuffle(decoding)
        logits = self.world.forward(chunks, [DecodeRow(s.row, s.fed, s.token_ids[s.fed], 0) for s in decoding])
        for index, sequence in enumerate(decoding):
            self.worst = max(self.worst, float(np.abs(logits[index] - sequence.expected[sequence.fed]).max()))
            sequence.fed += 1
            if sequence.fed == len(sequence.token_ids):
                del self.running[sequence.row]
                self.ended.append(sequence.row)


@pytest.mark.parametrize(("model_type", "level"), LEVELS_OF_MODELS)
def test_logits_are_those_of_a_plain_forward_whatever_joins_leaves_and_moves(model_type: str, level: Level) -> None:
    walk = _Walk(World(tiny_model(model_type), level, max_forward_tokens=13), seed=7)
    while walk.waiting or walk.running:
        walk.step()
    assert walk.worst < CLOSE


def test_a_full_slot_that_only_runs_along_keeps_its_tokens() -> None:
    model, draw = tiny_model("llama"), random.Random(3)
    world = World(model, Level.PER_POOL)
    full, other = [[draw.randrange(VOCAB) for _ in range(n)] for n in (LENGTHS[0] + 1, 20)]
    world.admit((0, Slot(0, 0)), (1, Slot(0, 1)), (2, Slot(0, 2)))
    world.forward([PrefillChunk(1, 0, full[:-1]), PrefillChunk(0, 0, other), PrefillChunk(2, 0, other)], [])
    world.forward([], [DecodeRow(row, len(other), 5, 0) for row in (0, 2)])
    world.prepare((3, 1, 0), moves=[RowMove(1, Slot(1, 0))])
    assert world.feed(1, full[-1:], LENGTHS[0]) == pytest.approx(last_logits(model, full), abs=CLOSE)


@pytest.mark.parametrize("level", list(Level))
def test_decode_rows_come_back_in_the_order_given(level: Level) -> None:
    model = tiny_model("llama")
    world = World(model, level)
    sequences = {4: [5, 6, 7], 1: [8], 3: [9, 9], 0: [4, 3]}
    world.admit((4, Slot(1, 1)), (1, Slot(0, 5)), (3, Slot(0, 2)), (0, Slot(1, 0)))
    chunks = [PrefillChunk(row, 0, ids[:-1]) for row, ids in sequences.items() if len(ids) > 1]
    for order in ([4, 1, 3, 0], [0, 4], [3, 1]):
        starts = {row: world.runner._table.tokens_of(row) for row in order}
        decodes = []
        for row in order:
            fed = sequences[row][-1] if chunks else row + 10
            start = len(sequences[row]) - 1 if chunks else starts[row]
            decodes.append(DecodeRow(row, start, fed, 0))
            if not chunks:
                sequences[row].append(fed)
        found = world.forward(chunks, decodes)
        chunks = []
        for logits, row in zip(found, order, strict=True):
            assert logits == pytest.approx(last_logits(model, sequences[row]), abs=CLOSE)


def test_a_forward_has_no_more_tokens_than_it_may() -> None:
    model = tiny_model("llama")
    counts: list[int] = []

    class Counting:
        def __call__(self, inputs: mx.array, *, cache: Any) -> mx.array:
            counts.append(inputs.size)
            logits: mx.array = model(inputs, cache=cache)
            return logits

    world = World(model, Level.FUSED, max_forward_tokens=10)
    world.runner._model = Counting()
    world.admit((0, Slot(1, 0)), (1, Slot(0, 0)), (2, Slot(0, 1)))
    world.forward([PrefillChunk(0, 0, [3] * 25)], [])
    assert counts == [10, 10, 5]
    counts.clear()
    found = world.forward([PrefillChunk(1, 0, [4] * 7), PrefillChunk(2, 0, [5] * 8)], [DecodeRow(0, 25, 6, 0)])
    assert counts == [7, 9]
    assert found[0] == pytest.approx(last_logits(model, [3] * 25 + [6]), abs=CLOSE)


@pytest.mark.parametrize("level", list(Level))
@pytest.mark.parametrize("model_type", ["llama", "gemma3_text"])
def test_a_step_writes_in_place(model_type: str, level: Level) -> None:
    """A slice of a buffer that somebody keeps would turn each write into a copy of the whole buffer."""
    world = World(tiny_model(model_type), level)
    world.admit(*[(row, Slot(2, row)) for row in range(32)])
    one_buffer = world.runner.written_arrays()[0].nbytes
    world.forward([PrefillChunk(row, 0, [1, 2, 3]) for row in range(32)], [])
    for step in range(3):
        mx.reset_peak_memory()
        active = mx.get_active_memory()
        chunk = PrefillChunk(0, 3 + 5 * step, [4, 5, 6, 7])
        world.forward(
            [chunk], [DecodeRow(0, 7 + 5 * step, 1, 0)] + [DecodeRow(r, 3 + step, 1, 0) for r in range(1, 32)]
        )
        assert mx.get_peak_memory() - active < one_buffer / 2


@pytest.mark.parametrize("model_type", ["llama", "gemma3_text", "mamba"])
def test_all_memory_is_freed_when_no_row_is_taken(model_type: str) -> None:
    world = World(tiny_model(model_type))
    active = mx.get_active_memory()
    world.admit((3, Slot(2, 1)))
    assert mx.get_active_memory() > active
    world.prepare((0, 0, 0), releases=[3])
    assert mx.get_active_memory() == active


@pytest.mark.parametrize("model_type", ["gemma3_text", "mamba", "qwen3"])
def test_memory_is_what_the_capacity_was_reckoned_from(model_type: str) -> None:
    model = tiny_model(model_type)
    cost = trace_model(model).cost
    world = World(model)
    world.admit((0, Slot(0, 1)), (1, Slot(2, 0)))
    tokens = 2 * (LENGTHS[0] + 1) + LENGTHS[2] + 1
    expected = tokens * cost.bytes_per_token + 2 * cost.bytes_per_row
    assert sum(array.nbytes for array in world.runner.written_arrays()) == expected


def refused(world: World, **orders: Any) -> None:
    with pytest.raises(PlanError):
        world.runner.prepare(StepPlan(**{"pool_slots": world.pool_slots, **orders}))


def test_feeds_that_would_corrupt_memory_are_refused() -> None:
    world = World(tiny_model("llama"))
    world.admit((0, Slot(0, 0)), (1, Slot(0, 1)))
    world.forward([PrefillChunk(0, 0, [1] * (LENGTHS[0] - 1))], [DecodeRow(0, LENGTHS[0] - 1, 1, 0)])
    for chunks, decodes in (
        ([], [DecodeRow(0, LENGTHS[0], 1, 0)]),  # past the end of the slot
        ([PrefillChunk(1, 0, [1] * (LENGTHS[0] + 1))], []),
        ([PrefillChunk(1, 0, [])], []),
        ([], [DecodeRow(1, 5, 1, 0)]),  # leaves a gap
        ([], [DecodeRow(1, -1, 1, 0)]),
        ([], [DecodeRow(7, 0, 1, 0)]),  # no such row
        ([], [DecodeRow(1, 0, 1, 0), DecodeRow(1, 0, 2, 0)]),
    ):
        with pytest.raises(PlanError):
            world.forward(chunks, decodes)


def test_copies_of_what_a_row_does_not_hold_are_refused() -> None:
    world = World(tiny_model("llama"))
    world.admit((0, Slot(0, 0)))
    world.feed(0, [1, 2, 3])
    joins = [admission(1, Slot(0, 1))]
    refused(world, pool_slots=(2, 0, 0), admissions=joins, copies=[RowCopy(0, 1, 4)])
    world = World(tiny_model("mamba"), Level.POOLED_DECODE)
    world.admit((0, Slot(0, 0)))
    world.feed(0, [1, 2, 3])
    refused(world, pool_slots=(2, 0, 0), admissions=joins, copies=[RowCopy(0, 1, 2)])


def test_what_a_slot_was_used_for_leaves_no_trace_in_its_next_sequence() -> None:
    for model_type, level in (("gemma3_text", Level.FUSED), ("gemma3_text", Level.PER_POOL), ("mamba", Level.PER_POOL)):
        world = World(tiny_model(model_type), level)
        found = []
        for _ in range(2):
            world.admit((0, Slot(1, 0)))
            found.append(world.feed(0, [7, 8, 9, 10, 11]))
            world.prepare(releases=[0], admissions=[admission(0, Slot(1, 0))])
            world.feed(0, [5])
            world.prepare(releases=[0])
        assert (found[0] == found[1]).all()


@pytest.mark.parametrize("level", [Level.POOLED_DECODE, Level.PER_POOL])
def test_rows_that_do_not_decode_keep_their_state(level: Level) -> None:
    model = tiny_model("mamba")
    world = World(model, level)
    idle = [3, 1, 4, 1, 5, 9, 2, 6, 5]
    world.admit(*[(row, Slot(0, row)) for row in range(3)])
    world.forward([PrefillChunk(1, 0, idle[:5]), PrefillChunk(0, 0, [1, 2]), PrefillChunk(2, 0, [3, 2])], [])
    for step in range(3):
        world.forward(
            [PrefillChunk(1, 5 + step, idle[5 + step : 6 + step])], [DecodeRow(r, 2 + step, 3, 0) for r in (0, 2)]
        )
    assert world.feed(1, idle[8:], 8) == pytest.approx(last_logits(model, idle), abs=CLOSE)


@pytest.mark.parametrize("level", [Level.POOLED_DECODE, Level.PER_POOL])
def test_first_tokens_of_recurrent_sequences_come_back_in_the_order_given(level: Level) -> None:
    model = tiny_model("mamba")
    world = World(model, level)
    world.admit((0, Slot(0, 2)), (1, Slot(1, 0)), (2, Slot(0, 0)), (3, Slot(0, 1)))
    world.forward([PrefillChunk(1, 0, [4]), PrefillChunk(2, 0, [6])], [])
    decodes = [DecodeRow(3, 0, 9, 0), DecodeRow(1, 1, 5, 0), DecodeRow(0, 0, 8, 0), DecodeRow(2, 1, 7, 0)]
    found = world.forward([], decodes)
    for logits, token_ids in zip(found, ([9], [4, 5], [8], [6, 7]), strict=True):
        assert logits == pytest.approx(last_logits(model, token_ids), abs=CLOSE)


def test_a_prefill_does_not_copy_the_states_of_others() -> None:
    world = World(tiny_model("mamba", state_size=64), Level.POOLED_DECODE)
    world.admit(*[(row, Slot(0, row)) for row in range(64)])
    one_array = max(array.nbytes for array in world.runner.written_arrays())
    world.forward([PrefillChunk(row, 0, [1, 2]) for row in range(64)], [])
    mx.reset_peak_memory()
    active = mx.get_active_memory()
    world.forward([PrefillChunk(63, 2, [4, 5])], [])
    assert mx.get_peak_memory() - active < one_array / 2


def test_joins_and_leaves_copy_nothing() -> None:
    world = World(tiny_model("llama"))
    world.admit(*[(row, Slot(2, row)) for row in range(8)])
    mx.reset_peak_memory()
    active = mx.get_active_memory()
    world.prepare(releases=[5, 2])
    world.prepare(admissions=[admission(2, Slot(2, 5))])
    assert mx.get_peak_memory() <= active


def test_a_move_copies_the_row_alone() -> None:
    world = World(tiny_model("llama"))
    world.admit(*[(row, Slot(2, row)) for row in range(8)])
    world.feed(3, [1, 2, 3])
    world.prepare(releases=[7])
    one_buffer = world.runner.written_arrays()[0].nbytes
    mx.reset_peak_memory()
    active = mx.get_active_memory()
    world.move(3, Slot(2, 7))
    assert mx.get_peak_memory() - active < one_buffer / 8


def test_tiny_models_of_this_test_have_caches_that_slots_can_hold() -> None:
    assert all(trace_model(tiny_model(model_type)).layouts is not None for model_type in CONFIGS)
