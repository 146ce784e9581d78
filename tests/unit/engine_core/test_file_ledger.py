"""The sum of the files, and who goes first."""

import hypothesis.strategies as st
from hypothesis import given

from engine_core.file_ledger import FileEntry, FileLedger, FileName

ENTRIES = st.builds(FileEntry, st.sampled_from([FileName(c) for c in "abcdef"]), st.integers(0, 50), st.floats(0, 9))


@given(st.lists(st.one_of(ENTRIES, st.sampled_from([FileName("a"), FileName("b")]))), st.integers(0, 300))
def test_the_sum_is_right_and_the_longest_unused_go_first(moves: list[FileEntry | FileName], nbytes: int) -> None:
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
    chosen = ledger.longest_unused(nbytes)
    freed = sum(there[name].nbytes for name in chosen)
    assert freed >= nbytes or set(chosen) == set(there)
    assert not chosen or freed - there[chosen[-1]].nbytes < nbytes, "no more than needed"
    kept = [entry.used_s for name, entry in there.items() if name not in chosen]
    assert all(there[name].used_s <= used_s for name in chosen for used_s in kept)


def test_what_is_really_there_replaces_what_was_known() -> None:
    ledger = FileLedger(100)
    ledger.put(FileEntry(FileName("a"), 10, 1.0))
    ledger.replace([FileEntry(FileName("b"), 20, 1.0), FileEntry(FileName("c"), 5, 0.0)])
    ledger.check_invariants()
    assert (sorted(ledger), "a" in ledger, ledger.nbytes) == (["b", "c"], False, 25)
