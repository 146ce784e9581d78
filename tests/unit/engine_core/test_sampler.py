import random
from typing import Any

import mlx.core as mx
import numpy as np
import pytest
from sampling_reference import Floats, acceptable_tokens, adjusted_logits, probabilities

from engine_core.device import Admission, DecodeRow, Slot
from engine_core.sampler import Sampler
from engine_core.uniforms import uniform
from protocol.sampling import SamplingParams

VOCAB = 8500
EOS = (2, 3)


def params(**fields: Any) -> SamplingParams:
    return SamplingParams(max_tokens=100, **fields)


def admission(row: int, sampling: SamplingParams, prompt: tuple[int, ...] = (), output: tuple[int, ...] = ()) -> Any:
    return Admission(row, Slot(0, row), prompt, output, sampling)


def sampled(logits: Floats, *admissions: Admission, position: int | None = None, lookahead: bool = False) -> list[int]:
    """Samples one token for each sequence, all in one batch, from a new sampler."""
    sampler = Sampler(logits.shape[1], EOS, may_wait=not lookahead)
    decodes = []
    for entry in admissions:
        sampler.admit(entry)
        decodes.append(DecodeRow(entry.row, 0, 0, len(entry.output) if position is None else position))
    tokens: list[int] = sampler.sample(mx.array(logits.astype(np.float32)), decodes).tokens.tolist()  # type: ignore[assignment]
    sampler.check_invariants()
    return tokens


def random_logits(rows: int, vocab_size: int = VOCAB, seed: int = 0) -> Floats:
    return np.random.default_rng(seed).normal(0, 3, (rows, vocab_size)).astype(np.float32).astype(np.float64)


def random_admission(draw: random.Random, row: int) -> Admission:
    """Any mix of parameters, each off half of the time."""

    def maybe(value: Any, off: Any) -> Any:
        return value if draw.random() < 0.5 else off

    history = tuple(draw.randrange(VOCAB) for _ in range(40))
    sampling = params(
        seed=draw.getrandbits(64),
        temperature=maybe(draw.uniform(0.2, 1.8), 0.0),
        top_p=maybe(draw.uniform(0.05, 0.99), 1.0),
        top_k=maybe(draw.choice([1, 20, 64, 65, 256, 500]), 0),
        min_p=maybe(draw.uniform(0.001, 0.3), 0.0),
        repetition_penalty=maybe(draw.uniform(0.7, 1.6), 1.0),
        presence_penalty=maybe(draw.uniform(-2, 2), 0.0),
        frequency_penalty=maybe(draw.uniform(-2, 2), 0.0),
        min_tokens=maybe(50, 0),
        stop_token_ids=maybe((5, 9), ()),
        ignore_eos=draw.random() < 0.5,
        logit_bias=maybe({draw.randrange(VOCAB): draw.uniform(-10, 10) for _ in range(3)}, {}),
        allowed_token_ids=draw.choice([None, None, tuple(draw.sample(range(VOCAB), 700))]),
        bad_words_token_ids=draw.choice([(), tuple((draw.randrange(VOCAB),) for _ in range(2000))]),
        logprobs=draw.choice([None, 0, 5]),
    )
    return Admission(row, Slot(0, row), history[:20], history[20 : 20 + draw.randrange(20)], sampling)


@pytest.mark.parametrize("seed", range(12))
def test_every_mix_of_parameters_agrees_with_the_reference(seed: int) -> None:
    draw = random.Random(seed)
    admissions = [random_admission(draw, row) for row in range(24)]
    logits = random_logits(24, seed=seed)
    tokens = sampled(logits, *admissions, lookahead=seed % 2 == 0)
    for entry, row_logits, token in zip(admissions, logits, tokens, strict=True):
        sampling = entry.sampling
        adjusted = adjusted_logits(row_logits, sampling, entry.prompt, entry.output, EOS)
        drawn_at = uniform(sampling.seed, len(entry.output))
        assert token in acceptable_tokens(probabilities(adjusted, sampling), drawn_at, slack=2e-5)


@pytest.mark.parametrize("seed", range(6))
def test_a_row_gets_the_same_token_alone_and_in_any_batch(seed: int) -> None:
    draw = random.Random(100 + seed)
    admissions = [random_admission(draw, row) for row in range(32)]
    logits = random_logits(32, seed=seed)
    lookahead = seed % 2 == 0
    together = sampled(logits, *admissions, lookahead=lookahead)
    order = draw.sample(range(32), 9)
    some = sampled(logits[order], *[admissions[i] for i in order], lookahead=lookahead)
    assert some == [together[i] for i in order]
    alone = [sampled(logits[i : i + 1], admissions[i], lookahead=lookahead)[0] for i in range(32)]
    assert alone == together


MIXES: list[dict[str, Any]] = [
    {"temperature": 1.0},
    {"temperature": 0.6},
    {"temperature": 1.5, "top_p": 0.8},
    {"temperature": 1.0, "top_k": 7},
    {"temperature": 1.2, "min_p": 0.05},
    {"temperature": 0.9, "top_k": 12, "top_p": 0.9, "min_p": 0.01},
    {"temperature": 1.0, "repetition_penalty": 1.4, "frequency_penalty": 0.5},
]


@pytest.mark.parametrize("fields", MIXES, ids=str)
def test_draws_follow_the_distribution(fields: dict[str, Any]) -> None:
    """Pearson's chi-square over 4,000 draws; z is its distance from the mean in standard deviations."""
    draws, batch, output = 4000, 100, (4, 4, 8)
    logits = random_logits(1, vocab_size=30, seed=11)
    counts = np.zeros(30)
    for start in range(0, draws, batch):
        rows = [admission(i, params(seed=start + i, **fields), (1, 2), output) for i in range(batch)]
        np.add.at(counts, sampled(np.repeat(logits, batch, axis=0), *rows), 1)
    expected = probabilities(adjusted_logits(logits[0], params(**fields), (1, 2), output, EOS), params(**fields))
    assert counts[expected == 0].sum() == 0, "a token outside of the support was drawn"
    likely = expected * draws >= 5
    observed = np.append(counts[likely], counts[~likely].sum())
    wanted = np.append(expected[likely], expected[~likely].sum()) * draws
    observed, wanted = observed[wanted > 0], wanted[wanted > 0]
    degrees = len(wanted) - 1
    z = (((observed - wanted) ** 2 / wanted).sum() - degrees) / np.sqrt(2 * degrees)
    assert abs(z) < 3.5


def test_temperature_zero_and_next_to_zero_take_the_likeliest_token() -> None:
    logits = random_logits(2)
    rows = [admission(0, params(temperature=0.0)), admission(1, params(temperature=9e-6, top_p=0.5, top_k=3))]
    assert sampled(logits, *rows) == logits.argmax(axis=1).tolist()


def test_the_draw_changes_with_seed_and_with_position_only() -> None:
    logits = np.zeros((1, VOCAB))
    by_seed = {sampled(logits, admission(0, params(seed=seed)))[0] for seed in range(20)}
    by_position = {sampled(logits, admission(0, params(seed=1)), position=p)[0] for p in range(20)}
    assert len(by_seed) > 15 and len(by_position) > 15
    assert sampled(logits, admission(0, params(seed=1))) == sampled(logits, admission(3, params(seed=1)))


ENDING = [
    (params(temperature=0.0, min_tokens=2), 0, 5),
    (params(temperature=0.0, min_tokens=2, stop_token_ids=(5,)), 1, 6),
    (params(temperature=0.0, min_tokens=2, stop_token_ids=(5,)), 2, 2),
    (params(temperature=0.0, min_tokens=2, ignore_eos=True), 0, 2),
    (params(temperature=0.0, min_tokens=2, ignore_eos=True, stop_token_ids=(2,)), 0, 3),
    (params(temperature=0.0), 0, 2),
]


@pytest.mark.parametrize(("sampling", "position", "expected"), ENDING)
def test_minimum_tokens_bars_what_would_end_the_request(sampling: Any, position: int, expected: int) -> None:
    logits = np.zeros((1, 10))
    logits[0, [2, 3, 5, 6]] = [9, 8, 7, 6]
    assert sampled(logits, admission(0, sampling), position=position) == [expected]


def test_penalties_count_each_token_as_it_is_sampled() -> None:
    sampler = Sampler(4, EOS, may_wait=False)
    sampler.admit(Admission(6, Slot(0, 6), [0], [], params(temperature=0.0, frequency_penalty=1.0)))
    logits = mx.array([[2.5, 2.0, 0.0, 0.0]])
    tokens = [sampler.sample(logits, [DecodeRow(6, 1 + i, 0, i)]).tokens.item() for i in range(5)]
    assert tokens == [0, 1, 0, 1, 0]


def test_output_of_before_a_preemption_counts_as_if_it_had_been_sampled_here() -> None:
    sampling = params(temperature=0.0, frequency_penalty=1.0)
    logits = np.array([[2.5, 2.0, 0.0, 0.0]])
    assert sampled(logits, admission(0, sampling, (0,), (0,))) == [1]
    assert sampled(logits, admission(0, sampling, (0, 0), ())) == [0], "presence and frequency skip the prompt"


def test_logit_bias_forces_and_bans_tokens() -> None:
    logits = random_logits(2)
    best = int(logits[1].argmax())
    rows = [
        admission(0, params(temperature=0.0, logit_bias={17: 100.0, VOCAB + 5: 100.0})),
        admission(1, params(temperature=0.0, logit_bias={best: -100.0})),
    ]
    forced, other = sampled(logits, *rows)
    assert forced == 17
    assert other == int(np.argsort(logits[1])[-2])


def test_half_precision_logits_are_sampled_in_float32() -> None:
    logits = mx.array(random_logits(1).astype(np.float32)).astype(mx.bfloat16)
    sampler = Sampler(VOCAB, EOS, may_wait=False)
    sampler.admit(admission(0, params(seed=4, top_p=0.9)))
    token = sampler.sample(logits, [DecodeRow(0, 0, 0, 0)]).tokens.item()
    exact = np.array(logits.astype(mx.float32)).astype(np.float64)[0]
    assert token in acceptable_tokens(probabilities(exact, params(top_p=0.9)), uniform(4, 0), slack=2e-5)


def test_rows_that_leave_and_join_do_not_inherit_parameters() -> None:
    sampler = Sampler(4, EOS, may_wait=False)
    logits = mx.array([[3.0, 1.0, 0.0, 0.0]])
    decode = [DecodeRow(0, 0, 0, 0)]
    for bias, expected in ((-9.0, 1), (0.0, 0), (-9.0, 1)):
        sampler.admit(admission(0, params(temperature=0.0, logit_bias={0: bias}, frequency_penalty=2.5)))
        assert sampler.sample(logits, decode).tokens.item() == expected
        sampler.release(0)
        sampler.check_invariants()


def test_bad_words_and_allowed_tokens_hold_while_the_output_grows() -> None:
    sampling = params(temperature=0.0, allowed_token_ids=(0, 1), bad_words_token_ids=((0, 0), (1, 1)))
    sampler = Sampler(4, EOS, may_wait=False)
    sampler.admit(Admission(2, Slot(0, 2), [0], [], sampling))
    logits = mx.array([[2.0, 1.0, 5.0, 5.0]])
    tokens = [sampler.sample(logits, [DecodeRow(2, 1 + i, 0, i)]).tokens.item() for i in range(4)]
    assert tokens == [0, 1, 0, 1]
    sampler.release(2)
    sampler.check_invariants()


def test_log_probabilities_come_of_the_rows_that_ask_and_from_the_logits_of_the_model() -> None:
    logits = random_logits(3, vocab_size=50)
    sampler = Sampler(50, EOS, may_wait=False)
    for row, fields in enumerate(({}, {"logprobs": 2, "logit_bias": {7: 50.0}}, {"logprobs": 0})):
        sampler.admit(admission(row, params(temperature=0.0, **fields)))
    result = sampler.sample(mx.array(logits.astype(np.float32)), [DecodeRow(row, 0, 0, 0) for row in range(3)])
    found = result.logprobs()
    assert found.keys() == {1, 2}
    exact = logits - np.log(np.exp(logits).sum(axis=1, keepdims=True))
    assert found[1].logprob == pytest.approx(exact[1, 7], abs=1e-5), "the biased token, without its bias"
    assert list(found[1].top_ids) == np.argsort(-logits[1])[:2].tolist()
    assert (found[2].rank, list(found[2].top_ids)) == (1, [])


@pytest.mark.parametrize("lookahead", [True, False])
def test_with_lookahead_nothing_is_evaluated_while_a_step_is_built(lookahead: bool) -> None:
    """What was computed has memory; what is still to be computed has none."""
    sampler = Sampler(VOCAB, EOS, may_wait=not lookahead)
    fields: dict[str, Any] = {"top_p": 0.9, "repetition_penalty": 1.1, "bad_words_token_ids": ((1, 2),), "logprobs": 3}
    sampler.admit(admission(0, params(temperature=1.0, **fields), (1, 2), (3,)))
    pending = mx.zeros((1, VOCAB)) + 1.0
    before = mx.get_active_memory()
    sampler.sample(pending, [DecodeRow(0, 0, 0, 1)])
    assert (mx.get_active_memory() - before < VOCAB) == lookahead
