"""Prefixes are named by all that their KV depends on, and by nothing else."""

from array import array
from itertools import product

from hypothesis import given
from hypothesis import strategies as st

from protocol.codec import pack_token_ids
from protocol.prefix_hash import (
    BLOCK_TOKENS,
    block_key,
    is_fit_for,
    packed_block_keys,
    prefix_chain,
    prefix_root,
    unpack_block_keys,
)

ROOT = prefix_root("card", "", "")
GOLDEN = "aa99d8843c8da2f38e4a46f0b15d26c4f681c00f0df78c945f752181b6dc4d9f"
"""Made with struct and hashlib: lengths as 64 bits and ids as 32 bits, little-endian."""


def test_a_chain_has_its_root_and_a_hash_for_each_whole_block() -> None:
    lengths = {length: len(prefix_chain(ROOT, [7] * length)) for length in (0, 1, 63, 64, 127, 128, 129)}
    assert lengths == {0: 1, 1: 1, 63: 1, 64: 2, 127: 2, 128: 3, 129: 3}


@given(st.lists(st.integers(0, 2**32 - 1), min_size=192, max_size=192), st.integers(0, 191), st.integers(0, 2**32 - 1))
def test_a_changed_token_changes_its_block_and_all_after_it(tokens: list[int], place: int, other: int) -> None:
    changed = [*tokens[:place], other, *tokens[place + 1 :]]
    first, second = prefix_chain(ROOT, tokens), prefix_chain(ROOT, changed)
    same = 1 + (place // BLOCK_TOKENS if other != tokens[place] else 3)
    assert first[:same] == second[:same]
    assert not set(first[same:]) & set(second[same:])


def test_arrays_and_lists_are_named_alike() -> None:
    assert prefix_chain(ROOT, array("I", range(130))) == prefix_chain(ROOT, list(range(130)))


def test_no_two_seeds_collide() -> None:
    parts = ("", "a", "b", "ab", "aa", "\x00", "a\x00", "\udc80")
    roots = {prefix_root(*fields) for fields in product(parts, repeat=3)}
    assert len(roots) == len(parts) ** 3


def test_names_do_not_change_between_releases() -> None:
    assert prefix_chain(prefix_root("c", "a", "s"), range(64))[1].hex() == GOLDEN


@given(st.lists(st.integers(0, 2**32 - 1), max_size=200))
def test_the_keys_of_a_packed_prompt_are_the_beginnings_of_its_hashes(tokens: list[int]) -> None:
    keys = unpack_block_keys(packed_block_keys(ROOT, pack_token_ids(tokens)))
    assert keys == [block_key(block_hash) for block_hash in prefix_chain(ROOT, tokens)[1:]]
    assert is_fit_for(b"".join(keys), len(tokens))


def test_another_salt_gives_other_keys() -> None:
    prompt = pack_token_ids(range(640))
    salted = {packed_block_keys(prefix_root("card", "", salt), prompt) for salt in ("", "a", "b")}
    assert len(salted) == 3


def test_keys_may_be_fewer_than_the_blocks_of_a_prompt_but_neither_more_nor_in_parts() -> None:
    assert all(is_fit_for(b"x" * length, 128) for length in (0, 16, 32))
    assert not any(is_fit_for(b"x" * length, 128) for length in (15, 17, 48))
