"""What a grammar does to the logits of a batch."""

import mlx.core as mx
import numpy as np

from engine_core.device import Admission, DecodeRow, Slot
from engine_core.grammar_masks import GrammarMasks
from engine_core.sampler import Sampler
from protocol.sampling import SamplingParams

VOCAB = 8
EOS = 7


def mask(*tokens: int) -> np.ndarray:
    allowed = np.zeros(VOCAB, np.bool_)
    allowed[list(tokens)] = True
    return allowed


def sampled(params: list[SamplingParams], masks: GrammarMasks | None) -> list[int]:
    sampler = Sampler(VOCAB, [EOS], may_wait=True)
    for row, sampling in enumerate(params):
        sampler.admit(Admission(row, Slot(0, row), [1], [], sampling))
    logits = mx.array([[float(token) for token in range(VOCAB)]] * len(params))
    decodes = [DecodeRow(row, 0, 1, 0) for row in range(len(params))]
    return sampler.sample(logits, decodes, masks).token_ids()


GREEDY = SamplingParams(max_tokens=4, temperature=0.0)


def test_rows_without_a_grammar_are_left_alone() -> None:
    masks = GrammarMasks([1], np.stack([mask(2, 3)]))
    assert sampled([GREEDY, GREEDY], masks) == [7, 3]
    assert sampled([GREEDY, GREEDY], GrammarMasks([0, 1], np.stack([mask(0), mask(2, 3)]))) == [0, 3]


def test_every_way_to_choose_keeps_to_the_grammar() -> None:
    ways = [
        SamplingParams(max_tokens=4, temperature=2.0, seed=3),
        SamplingParams(max_tokens=4, temperature=2.0, top_k=3),
        SamplingParams(max_tokens=4, temperature=2.0, top_p=0.9),
        SamplingParams(max_tokens=4, temperature=2.0, min_p=0.5, repetition_penalty=1.5),
    ]
    masks = GrammarMasks([*range(4)], np.stack([mask(1)] * 4))
    assert sampled(ways, masks) == [1] * 4


def test_the_grammar_wins_where_nothing_else_is_left() -> None:
    # BR-e13: minimum tokens forbid the end, but the grammar allows nothing else
    too_early = SamplingParams(max_tokens=9, temperature=0.0, min_tokens=5)
    assert sampled([too_early], GrammarMasks([0], np.stack([mask(EOS)]))) == [EOS]
    assert sampled([too_early], GrammarMasks([0], np.stack([mask(2, EOS)]))) == [2]
    others = SamplingParams(max_tokens=9, temperature=0.0, allowed_token_ids=(5,))
    assert sampled([others], GrammarMasks([0], np.stack([mask(2, 3)]))) == [3]
    assert sampled([others], GrammarMasks([0], np.stack([mask(2, 5)]))) == [5]
    no_end = SamplingParams(max_tokens=9, temperature=0.0, logit_bias={EOS: -100.0})
    assert sampled([no_end], GrammarMasks([0], np.stack([mask(EOS)]))) == [EOS]
