"""Where rows stand in their grammars."""

import numpy as np
import pytest
from fake_grammar import OneOutput, OneOutputMatcher

from engine_core import grammar_rows
from engine_core.device import DecodeRow, RowGrammar
from engine_core.grammar_rows import NOT_ALLOWED, TOO_SLOW, GrammarRow, GrammarRows, accept_sampled

VOCAB = 70


def rows_with(*tokens: int, starts_after: tuple[int, ...] = (), output: tuple[int, ...] = ()) -> GrammarRows:
    rows = GrammarRows(VOCAB)
    rows.admit(3, RowGrammar(OneOutput(tokens), starts_after), output)
    return rows


def the_row(rows: GrammarRows) -> GrammarRow:
    return rows.places([DecodeRow(9, 0, 0, 0), DecodeRow(3, 0, 0, 0)])[1]


def may_come(rows: GrammarRows) -> list[int]:
    mask = rows.allowed([the_row(rows)])
    assert mask.shape == (1, VOCAB) and mask.dtype == np.bool_
    return np.flatnonzero(mask[0]).tolist()


def test_only_what_the_grammar_allows_may_come() -> None:
    rows = rows_with(5, 66)
    assert may_come(rows) == [5]
    assert accept_sampled({1: the_row(rows)}, [0, 5]) == {}
    assert may_come(rows) == [66]
    assert accept_sampled({1: the_row(rows)}, [0, 66]) == {1: None}
    assert may_come(rows) == [*range(VOCAB)]  # over: whatever is sampled in the step ahead is dropped


def test_output_from_before_counts() -> None:
    # after a preemption, or on another engine core
    assert may_come(rows_with(5, 6, 7, output=(5, 6))) == [7]


def test_a_token_that_is_not_allowed_fails_its_row_alone() -> None:
    rows, other = rows_with(5), rows_with(5)
    assert accept_sampled({0: the_row(rows), 1: the_row(other)}, [4, 5]) == {0: NOT_ALLOWED, 1: None}
    assert accept_sampled({0: the_row(rows)}, [5]) == {0: NOT_ALLOWED}
    assert rows_with(5, 6, output=(4,)) and the_row(rows_with(5, 6, output=(4,))).failure == NOT_ALLOWED


def test_a_grammar_holds_behind_its_start() -> None:
    rows = rows_with(5, 6, starts_after=(1, 2))
    for token in (5, 1, 1, 2):
        assert may_come(rows) == [*range(VOCAB)]
        assert accept_sampled({1: the_row(rows)}, [0, token]) == {}
    assert may_come(rows) == [5]
    assert may_come(rows_with(5, 6, starts_after=(1, 2), output=(9, 1, 2, 5))) == [6]


def test_a_row_that_takes_too_long_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = rows_with(5, 6)
    clock = iter(range(1000))
    monkeypatch.setattr(grammar_rows.time, "thread_time", lambda: next(clock) * (grammar_rows.MAX_TOKEN_CPU_S + 0.1))
    rows.allowed([the_row(rows)])
    assert accept_sampled({1: the_row(rows)}, [0, 5]) == {1: TOO_SLOW}


def test_released_rows_are_forgotten() -> None:
    rows = rows_with(5)
    rows.check_invariants([3])
    rows.release(3)
    rows.release(3)
    assert rows.places([DecodeRow(3, 0, 0, 0)]) == {}
    rows.check_invariants([])
    rows.admit(4, None, ())
    assert rows.places([DecodeRow(4, 0, 0, 0)]) == {}


def test_a_matcher_of_an_earlier_stay_gets_the_tokens_of_its_steps() -> None:
    rows = rows_with(5, 6)
    earlier = the_row(rows)
    rows.release(3)
    rows.admit(3, RowGrammar(OneOutput((7,))), ())
    assert accept_sampled({0: earlier}, [5]) == {}
    assert may_come(rows) == [7]
    assert isinstance(OneOutput((1,)).matcher(), OneOutputMatcher)
