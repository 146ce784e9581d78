"""Long seeded traces in which memory is always short: what scheduler_world promises holds, and it was really short."""

import random
from collections import Counter

import pytest
from scheduler_world import World
from token_device import VOCABULARY, doubled_lengths

from engine_core.scheduler_limits import SchedulerLimits
from protocol.sampling import SamplingParams

SEEDS = 24


def storm(seed: int, *, has_states: bool, events: int = 400) -> World:
    """Requests that come faster than they are served, in a cache that hardly holds the longest."""
    draw = random.Random(seed)
    longest = draw.choice([320, 512, 600])
    limits = SchedulerLimits(
        max_num_seqs=draw.choice([2, 5, 12]),
        max_num_batched_tokens=draw.choice([16, 64, 256]),
        max_model_len=longest + 1,
        kv_capacity_tokens=longest + draw.choice([0, 64, 300, 600, 1_200]),
        pool_lengths=doubled_lengths(draw.choice([32, 64, 100]), longest),
        growth_tokens=draw.choice([0, 8, 64]),
        checkpoint_tokens=draw.choice([1, 64, 100]) if has_states else 0,
    )
    world = World(limits, lookahead=seed % 2 == 1, stores_prefixes=seed % 4 < 3)
    for _ in range(events):
        _event(world, draw, longest)
        world.check()
    return world


def _event(world: World, draw: random.Random, longest: int) -> None:
    chance = draw.random()
    if chance < 0.3 and len(world.live()) < 20:
        shared = [7] * draw.choice([0, 0, 30, 64, 100, 200])
        own = [draw.randrange(VOCABULARY) for _ in range(draw.choice([1, 5, 30, 90, longest // 2]))]
        sampling = SamplingParams(max_tokens=draw.choice([1, 2, 20, 100, 400]), ignore_eos=draw.random() < 0.7)
        world.add([*shared, *own], sampling, draw.choice([0, 0, 1]), draw.randrange(3))
    elif chance < 0.33 and world.requests:
        key = draw.choice(list(world.requests))
        if draw.random() < 0.5:
            world.abort([key])
        else:
            world.add_newer_attempt(key, draw.choice([0, 1, 30]))
    elif chance < 0.335:
        world.lose_client(draw.randrange(3))
    else:
        for _ in range(draw.choice([1, 1, 3, 20])):
            world.step()


seen: Counter[str] = Counter()


@pytest.mark.parametrize("has_states", [False, True])
@pytest.mark.parametrize("seed", range(SEEDS))
def test_every_request_ends_once_with_the_tokens_that_it_would_get_alone(seed: int, has_states: bool) -> None:
    world = storm(seed, has_states=has_states)
    world.finish()
    if has_states:
        seen.update(checkpoints=world.device.restored_tokens)
    load = world.scheduler.load()
    seen.update(
        preemptions=load.preemptions_total,
        moves=world.device.moves,
        restored=world.device.restored_tokens,
        output=load.generation_tokens_total,
    )


def test_the_storms_had_what_is_dangerous_in_them() -> None:
    if not seen:
        pytest.skip("no storm was run")
    assert min(seen[key] for key in ("preemptions", "moves", "restored", "checkpoints", "output")) > 20, seen
