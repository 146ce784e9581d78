"""What is told of stored blocks, in which pieces."""

from hypothesis import given
from hypothesis import strategies as st

from engine_core.block_report import MAX_KEYS_PER_MESSAGE, BlockMessage, BlockReport
from protocol.messages import BlocksChanged
from protocol.prefix_hash import BLOCK_KEY_BYTES, BlockHash, block_key, unpack_block_keys


def block(number: int) -> BlockHash:
    return BlockHash(number.to_bytes(4, "big") * 8)


def told(messages: list[BlockMessage]) -> list[tuple[int, bool, list[int], list[int]]]:
    """Number, anew, stored and evicted blocks of each message."""
    return [(m.message.sequence, m.message.anew, _numbers(m.buffers[0]), _numbers(m.buffers[1])) for m in messages]


def _numbers(packed: bytes) -> list[int]:
    return [int.from_bytes(key[:4], "big") for key in unpack_block_keys(packed)]


def test_changes_are_told_once_and_the_whole_when_asked_for() -> None:
    report = BlockReport()
    assert told(report.take({block(1): True, block(2): True})) == [(0, False, [1, 2], [])]
    assert told(report.take({})) == []
    assert told(report.take({block(2): False, block(3): True})) == [(1, False, [], [2]), (2, False, [3], [])]
    assert told(report.whole()) == [(3, True, [1, 3], [])]


def test_that_nothing_is_stored_is_told_too() -> None:
    assert told(BlockReport().whole()) == [(0, True, [], [])]


def test_no_message_has_more_keys_than_the_limit_and_only_the_first_begins_anew() -> None:
    report = BlockReport()
    count = 2 * MAX_KEYS_PER_MESSAGE + 1
    pieces = report.take({block(number): True for number in range(count)})
    sizes = [len(unpack_block_keys(piece.buffers[0])) for piece in pieces]
    assert sizes == [MAX_KEYS_PER_MESSAGE, MAX_KEYS_PER_MESSAGE, 1]
    whole = report.whole()
    assert [piece.message for piece in whole] == [BlocksChanged(3, True), BlocksChanged(4), BlocksChanged(5)]
    assert [number for piece in told(whole) for number in piece[2]] == list(range(count))


def test_a_key_is_the_beginning_of_a_hash() -> None:
    assert len(block_key(block(1))) == BLOCK_KEY_BYTES
    assert block(1).startswith(block_key(block(1)))


@given(st.lists(st.dictionaries(st.integers(0, 20), st.booleans(), max_size=6), max_size=12))
def test_who_follows_the_changes_knows_the_whole(history: list[dict[int, bool]]) -> None:
    report, known = BlockReport(), set[int]()
    for changes in history:
        for _, anew, stored, evicted in told(report.take({block(n): is_stored for n, is_stored in changes.items()})):
            assert not anew
            known = (known - set(evicted)) | set(stored)
    assert {number for _, _, stored, _ in told(report.whole()) for number in stored} == known
