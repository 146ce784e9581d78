"""One slot between the busy loop and the input thread."""

import msgspec

from engine_core.events import CoreStatus
from engine_core.status_board import StatusBoard
from protocol.identifiers import RequestId
from protocol.messages import Load, RequestKey
from protocol.prefix_hash import BlockHash

ONE, TWO, THREE = (BlockHash(bytes([number]) * 32) for number in (1, 2, 3))
A, B = RequestKey(RequestId("a")), RequestKey(RequestId("b"))


class Bell:
    def __init__(self) -> None:
        self.rings = 0

    def __call__(self) -> None:
        self.rings += 1


def status(*ended: RequestKey, **load: int) -> CoreStatus:
    return CoreStatus(Load(**load), list(ended), adds_handled=0, welcome=0, progressed_s=0.0)  # type: ignore[arg-type]


def test_the_newest_status_replaces_the_older_but_no_end_is_lost() -> None:
    board = StatusBoard(Bell())
    assert board.take() is None
    board.publish(status(A, running=1))
    board.publish(status(B, running=2))
    assert board.take() == status(A, B, running=2)
    assert board.take() == status(running=2)


def test_it_rings_only_for_what_cannot_wait() -> None:
    bell = Bell()
    board = StatusBoard(bell)
    board.publish(status())
    for publish, rings in [
        (status(), 0),
        (status(steps_total=7, generation_tokens_total=9, kv_used_tokens=256), 0),
        (status(running=1), 1),
        (status(running=1, waiting=1), 1),
        (status(running=1, waiting=1, queued_prefill_tokens=4), 1),
        (status(A, running=1, waiting=1, queued_prefill_tokens=4), 1),
    ]:
        bell.rings = 0
        board.publish(publish)
        assert bell.rings == rings, publish
    bell.rings = 0
    last = status(running=1, waiting=1, queued_prefill_tokens=4)
    board.publish(msgspec.structs.replace(last, load=msgspec.structs.replace(last.load, draining=True)))
    assert bell.rings == 1


def test_its_end_is_rung_too() -> None:
    bell = Bell()
    board = StatusBoard(bell)
    assert not board.is_closed
    board.close()
    assert board.is_closed
    assert bell.rings == 1


def test_changes_of_blocks_are_kept_until_they_are_taken_and_the_last_counts() -> None:
    bell = Bell()
    board = StatusBoard(bell)
    board.publish(status())
    rings = bell.rings
    for changes in ({ONE: True, TWO: True}, {ONE: False, THREE: True}):
        board.publish(msgspec.structs.replace(status(), blocks=changes))
    taken = board.take()
    assert taken is not None
    assert taken.blocks == {ONE: False, TWO: True, THREE: True}
    assert board.take() == status()
    assert bell.rings == rings, "they can wait for whatever comes next"
