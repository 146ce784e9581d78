"""Where checkpoints are left."""

from sequence_samples import sequence_of

from engine_core.checkpoints import FEWEST_BETWEEN, MOST_ASKED, MOST_BETWEEN, NO_BORDER, Checkpoints
from engine_core.sequence import Sequence


def prefill(checkpoints: Checkpoints, sequence: Sequence) -> list[int]:
    """Prefills and decodes two blocks; where the sequence left a checkpoint."""
    left = []
    while sequence.prefill_left:
        sequence.planned(min(sequence.prefill_left, checkpoints.chunk_tokens(sequence)), decodes=False)
        left += _left(checkpoints, sequence)
    for _ in range(128):
        sequence.planned(0, decodes=True)
        sequence.sampled(1)
        left += _left(checkpoints, sequence)
    checkpoints.check_invariants()
    return left


def _left(checkpoints: Checkpoints, sequence: Sequence) -> list[int]:
    if not checkpoints.is_due(sequence):
        return []
    checkpoints.left(sequence)
    return [sequence.num_computed]


def long_sequence(length: int, row: int = 0, tail: int = 0) -> Sequence:
    return sequence_of([7] * (length - tail) + [row + 8] * tail, row, max_tokens=1_000)


def test_they_are_left_regularly_at_the_end_of_the_prompt_where_others_turn_off_and_while_decoding() -> None:
    checkpoints, sequence = Checkpoints(64), long_sequence(2_200)
    checkpoints.admitted(sequence, shared=700)
    assert prefill(checkpoints, sequence) == [640, 1_024, 2_048, 2_176, 2_240, 2_304]


def test_the_last_token_is_left_to_be_computed() -> None:
    for length, border in ((64, []), (65, [64]), (128, [64]), (129, [128])):
        checkpoints, sequence = Checkpoints(64), long_sequence(length)
        checkpoints.admitted(sequence, shared=length)
        assert [place for place in prefill(checkpoints, sequence) if place < length] == border


def test_the_distance_follows_the_size_within_bounds() -> None:
    assert [Checkpoints(size).between for size in (1, 1_500, 1_000_000)] == [FEWEST_BETWEEN, 1_536, MOST_BETWEEN]


def test_what_decode_has_left_is_given_up_for_what_it_leaves_next() -> None:
    checkpoints, sequence = Checkpoints(64), long_sequence(65)
    checkpoints.admitted(sequence, shared=0)
    given_up = []
    for _ in range(4 * 64):
        sequence.planned(sequence.prefill_left, decodes=True)
        sequence.sampled(1)
        if checkpoints.is_due(sequence):
            given_up.append(checkpoints.left(sequence))
    chain = sequence.chain
    assert given_up == [None, chain[2], chain[3], chain[4]], "that of the prompt stays"


def test_none_is_left_behind_a_token_that_is_not_known() -> None:
    checkpoints, sequence = Checkpoints(64), long_sequence(126)
    checkpoints.admitted(sequence, shared=0)
    sequence.planned(sequence.prefill_left, decodes=True)
    sequence.planned(0, decodes=True)
    sequence.planned(0, decodes=True)
    sequence.sampled(1)
    assert (sequence.num_computed, sequence.num_tokens, checkpoints.is_due(sequence)) == (128, 127, False)
    sequence.sampled(1)
    assert checkpoints.is_due(sequence)


def test_one_that_waits_gets_one_where_it_turns_off_from_who_has_not_passed_it() -> None:
    checkpoints, first = Checkpoints(64), long_sequence(1_000, row=0, tail=300)
    second = long_sequence(900, row=1, tail=200)
    checkpoints.admitted(first, shared=0)
    assert checkpoints.ask(second, [first], at_least=16)
    assert checkpoints.ask(second, [first], at_least=16), "it has asked already"
    assert not checkpoints.ask(second, [first], at_least=641)
    first.planned(checkpoints.chunk_tokens(first), decodes=False)
    assert (first.num_computed, checkpoints.is_due(first)) == (640, True)
    assert not checkpoints.ask(second, [first], at_least=16), "it is there"


def test_a_row_is_not_asked_without_end() -> None:
    checkpoints, first = Checkpoints(64), sequence_of(list(range(1_000)))
    checkpoints.admitted(first, shared=0)
    others = [sequence_of([*range(64 * n), *[5_000] * 40], row=n) for n in range(1, MOST_ASKED + 3)]
    asked = [checkpoints.ask(other, [first], at_least=16) for other in others]
    assert asked == [True] * MOST_ASKED + [False] * 2


def test_rows_of_which_nothing_is_stored_have_no_borders() -> None:
    checkpoints, sequence = Checkpoints(64), long_sequence(1_000)
    checkpoints.admitted(sequence, shared=700)
    checkpoints.forget(sequence.row)
    assert checkpoints.chunk_tokens(sequence) == NO_BORDER
    sequence.planned(960, decodes=False)
    assert not checkpoints.is_due(sequence)
