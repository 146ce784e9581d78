"""The sum of the files, and who goes first."""

import hypothesis.strategies as st
from hypothesis import given

from engine_core.file_ledger import FileEntry, FileLedger, FileName

ENTRIES = st.builds(FileEntry, st.sampled_from([FileName(c) for c in "abcdef"]), st.integers(0, 50), st.floats(0, 9))


@given(st.lists(st.one_of(ENTRIES, st.sampled_from([FileName("a"), FileName("b")]))))
def test_the_sum_is_right_and_the_longest_unused_go_first(moves: list[FileEntry | FileName]) -> None:
    ledger, there = FileLedger(100), dict[FileName, FileEntry]()
    for move in moves:
        if isinstance(move, FileEntry):
            ledger.put(move)
            there[move.name] = move
        else:
            ledger.remove(move)
            there.pop(move, None)
        ledger.check_invariants()
    total = sum(entry.nbytes for entry in there.values())
    assert (ledger.nbytes, ledger.excess(10)) == (total, total + 10 - 100)
    order = ledger.longest_unused_first()
    assert sorted(order) == sorted(there)
    assert [there[name].used_s for name in order] == sorted(entry.used_s for entry in there.values())


def test_what_is_really_there_replaces_what_was_known() -> None:
    ledger = FileLedger(100)
    ledger.put(FileEntry(FileName("a"), 10, 1.0))
    ledger.replace([FileEntry(FileName("b"), 20, 1.0), FileEntry(FileName("c"), 5, 0.0)])
    ledger.check_invariants()
    assert (sorted(ledger), "a" in ledger, ledger.nbytes) == (["b", "c"], False, 25)
