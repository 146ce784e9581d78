"""Which of many blocks begins most like other tokens."""

import hypothesis.strategies as st
from hypothesis import given

from engine_core.block_siblings import BlockSiblings, shared_length, token_key
from protocol.prefix_hash import BlockHash

IDS = st.one_of(st.integers(0, 2), st.sampled_from([255, 256, 65_536, 2**32 - 1]))
TOKENS = st.lists(IDS, max_size=5)


def common(one: list[int], other: list[int]) -> int:
    """The reference: token by token."""
    pairs = list(zip(one, other, strict=False))
    return next((i for i, (a, b) in enumerate(pairs) if a != b), len(pairs))


@given(TOKENS, TOKENS)
def test_the_shared_length_is_counted_in_tokens(one: list[int], other: list[int]) -> None:
    assert shared_length(token_key(one), token_key(other)) == common(one, other)
    assert (token_key(one) < token_key(other)) == (one < other)


@given(st.lists(st.lists(IDS, min_size=5, max_size=5), unique_by=tuple, max_size=20), TOKENS, st.data())
def test_the_one_most_alike_is_found_whatever_came_and_went(
    blocks: list[list[int]], wanted: list[int], data: st.DataObject
) -> None:
    siblings, there = BlockSiblings(), {}
    for number, block in enumerate(blocks):
        siblings.add(token_key(block), BlockHash(b"%d" % number))
        there[BlockHash(b"%d" % number)] = block
    for block_hash in data.draw(st.lists(st.sampled_from(sorted(there)), unique=True) if there else st.just([])):
        siblings.remove(token_key(there.pop(block_hash)))
    siblings.check_invariants()
    assert len(siblings) == len(there)
    most = max((common(block, wanted) for block in there.values()), default=0)
    found = siblings.most_alike(token_key(wanted))
    if most == 0:
        assert found is None
    else:
        assert found is not None
        assert found[1] == most == common(there[found[0]], wanted)
