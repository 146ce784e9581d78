"""A sequence knows its tokens and refuses moves that make no sense."""

from array import array

import pytest

from engine_core.sequence import IllegalMove, Sequence, Status
from protocol.identifiers import ClientIndex, RequestId
from protocol.messages import EngineCoreRequest
from protocol.prefix_hash import prefix_chain, prefix_root
from protocol.sampling import SamplingParams


def sequence(prompt_tokens: int = 4, max_tokens: int = 10, max_model_len: int = 100) -> Sequence:
    sampling = SamplingParams(max_tokens=max_tokens)
    request = EngineCoreRequest(RequestId("r"), ClientIndex(0), 0, "m", prompt_tokens, sampling, arrival_time_s=0.0)
    return Sequence(request, array("I", range(prompt_tokens)), 0, max_model_len)


def test_it_counts_what_is_computed_and_what_is_left() -> None:
    s = sequence(4)
    s.admit(row=3)
    assert (s.num_tokens, s.prefill_left, s.row) == (4, 3, 3)
    s.prefilled(2)
    assert (s.num_computed, s.prefill_left) == (2, 1)
    s.prefilled(1)
    s.decoded(77)
    assert (s.num_tokens, s.num_computed, s.prefill_left, s.output) == (5, 4, 0, [77])


def test_tokens_run_on_from_the_prompt_into_the_output() -> None:
    s = sequence(3)
    s.output.extend([70, 71, 72])
    everything = [0, 1, 2, 70, 71, 72]
    for start in range(6):
        for count in range(1, 7 - start):
            assert list(s.tokens(start, count)) == everything[start : start + count]


def test_a_preempted_sequence_keeps_its_output_and_computes_everything_again() -> None:
    s = sequence(2)
    s.admit(0)
    s.prefilled(1)
    s.decoded(9)
    s.preempt()
    assert (s.status, s.row, s.output, s.prefill_left) == (Status.PREEMPTED, -1, [9], 2)
    s.admit(1)
    assert s.status is Status.RUNNING


def test_the_last_sampled_token_needs_no_place_in_the_cache() -> None:
    assert sequence(4, max_tokens=10).most_kv_tokens == 13
    assert sequence(4, max_tokens=1_000, max_model_len=100).most_kv_tokens == 99


def test_an_illegal_move_raises_and_shows_what_came_before() -> None:
    s = sequence()
    s.admit(0)
    s.finish()
    with pytest.raises(IllegalMove, match="WAITING > RUNNING > FINISHED > RUNNING"):
        s.admit(0)
    with pytest.raises(IllegalMove):
        sequence().preempt()


def test_what_cannot_have_been_computed_is_refused() -> None:
    s = sequence(4)
    s.admit(0)
    with pytest.raises(AssertionError):
        s.prefilled(4)
    with pytest.raises(AssertionError):
        s.decoded(1)


def test_what_was_found_stored_is_told_from_what_it_stored_itself() -> None:
    s = sequence(200, max_model_len=1_000)
    s.admit(0)
    s.restored(64)
    assert (s.num_computed, s.prefill_left, s.cached_tokens) == (64, 135, 64)
    s.preempt()
    s.admit(1)
    s.restored(192)
    assert (s.num_computed, s.cached_tokens) == (192, 64)
    with pytest.raises(AssertionError):
        s.restored(64)


def test_blocks_are_named_as_their_tokens_become_known_and_taken_once_when_computed() -> None:
    root = prefix_root("m", "", "")
    request = EngineCoreRequest(RequestId("r"), ClientIndex(0), 0, "m", 100, SamplingParams(max_tokens=99), 0.0)
    s = Sequence(request, array("I", range(100)), 0, 1_000, chain=prefix_chain(root, range(100)))
    s.admit(0)
    s.prefilled(99)
    assert list(s.take_complete_blocks()) == [1]
    for token in range(100, 128):
        s.decoded(token)
        assert list(s.take_complete_blocks()) == []
    assert list(s.chain) == prefix_chain(root, range(128))
    s.decoded(128)
    assert list(s.take_complete_blocks()) == [2]
    assert list(s.take_complete_blocks()) == []
    s.preempt()
    s.admit(0)
    s.restored(64)
    s.prefilled(64)
    assert list(s.take_complete_blocks()) == [2]
    assert list(sequence(100).chain) == []
