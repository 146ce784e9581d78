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
    s.planned(2, decodes=False)
    assert (s.num_computed, s.prefill_left, s.last_token) == (2, 1, 3)
    s.planned(1, decodes=True)
    assert (s.num_tokens, s.length, s.num_computed, s.prefill_left) == (4, 5, 4, 0)
    assert (s.last_token, s.output_position) == (None, 1)
    s.sampled(77)
    assert (s.num_tokens, s.length, s.num_computed, s.output, s.last_token) == (5, 5, 4, [77], 77)


def test_two_steps_may_be_planned_before_a_token_is_known() -> None:
    s = sequence(4)
    s.admit(0)
    s.planned(3, decodes=True)
    s.planned(0, decodes=True)
    assert (s.num_tokens, s.length, s.num_computed, s.output_position) == (4, 6, 5, 2)
    s.sampled(70)
    assert s.last_token is None
    s.sampled(71)
    assert (s.output, s.last_token, s.prefill_left) == ([70, 71], 71, 0)
    with pytest.raises(AssertionError):
        s.sampled(72)


def test_it_is_not_planned_beyond_its_greatest_length() -> None:
    s = sequence(4, max_tokens=2)
    s.admit(0)
    s.planned(3, decodes=True)
    assert not s.is_at_its_end
    s.planned(0, decodes=True)
    assert s.is_at_its_end
    with pytest.raises(AssertionError):
        s.planned(0, decodes=True)


def test_earlier_output_at_the_end_of_the_prompt_is_output() -> None:
    request = EngineCoreRequest(
        RequestId("r"), ClientIndex(0), 1, "m", 6, SamplingParams(max_tokens=5), 0.0, num_output_tokens=2
    )
    s = Sequence(request, array("I", range(6)), 0, 100)
    assert (list(s.prompt), s.output, s.output_position, s.prefill_left) == ([0, 1, 2, 3], [4, 5], 2, 5)
    assert s.most_kv_tokens == 8, "3 tokens more, of which the last is never fed"


def test_each_stay_in_a_row_has_another_number() -> None:
    s = sequence(4)
    stays = [s.stay]
    for _ in range(2):
        s.admit(0)
        stays.append(s.stay)
        s.preempt()
        stays.append(s.stay)
    s.finish()
    stays.append(s.stay)
    assert len(set(stays)) == len(stays)


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
    s.planned(1, decodes=True)
    s.sampled(9)
    s.planned(0, decodes=True)  # what comes of this is drawn again
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
        s.planned(4, decodes=False)
    with pytest.raises(AssertionError):
        s.planned(2, decodes=True)
    with pytest.raises(AssertionError):
        s.sampled(1)


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
    s.planned(99, decodes=False)
    assert list(s.take_complete_blocks()) == [1]
    for token in range(100, 128):
        s.planned(0, decodes=True)
        assert list(s.take_complete_blocks()) == []
        s.sampled(token)
    assert list(s.chain) == prefix_chain(root, range(128))
    s.planned(0, decodes=True)
    assert list(s.take_complete_blocks()) == [2]
    assert list(s.take_complete_blocks()) == []
    s.preempt()
    s.admit(0)
    s.restored(70)
    s.planned(57, decodes=True)
    assert list(s.take_complete_blocks()) == [2]


def test_a_block_is_taken_when_its_last_token_is_known_and_not_before() -> None:
    root = prefix_root("m", "", "")
    request = EngineCoreRequest(RequestId("r"), ClientIndex(0), 0, "m", 63, SamplingParams(max_tokens=99), 0.0)
    s = Sequence(request, array("I", range(63)), 0, 1_000, chain=prefix_chain(root, range(63)))
    s.admit(0)
    s.planned(62, decodes=True)
    s.planned(0, decodes=True)  # feeds the token of position 63, which is not known
    assert s.num_computed == 64
    assert list(s.take_complete_blocks()) == []
    s.sampled(63)
    assert list(s.take_complete_blocks()) == [1]
    assert list(sequence(100).chain) == []
