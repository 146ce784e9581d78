"""Who is let in, by a file that may change, and what is logged of the others."""

from pathlib import Path

import pytest
from zmq.utils import z85

from protocol.curve import new_key_pair
from protocol.doorkeeper import LOG_INTERVAL_S, MAX_REFUSED, AllowedKeys, Doorkeeper, read_allowed_keys
from protocol.errors import BadKey

OWN, ONE, TWO = (new_key_pair().public for _ in range(3))


class Bench:
    def __init__(self, allowed: AllowedKeys) -> None:
        self.now_s = 1_000.0
        self.doorkeeper = Doorkeeper(allowed, lambda: self.now_s)

    def ask(self, key: str) -> bytes:
        """The status that a handshake with this key gets."""
        question = [b"1.0", b"7", b"shoal", b"10.0.0.9", b"", b"CURVE", z85.decode(key.encode())]
        version, request_id, status, _, user, _ = self.doorkeeper.reply(question)
        self.doorkeeper.check_invariants()
        assert (version, request_id) == (b"1.0", b"7")
        assert user == (key.encode() if status == b"200" else b"")
        return status


def test_the_file_is_read_anew_for_each_connection(tmp_path: Path) -> None:
    path = tmp_path / "allowed"
    path.write_text(f"# of the team\n\n{ONE} mac-1\n")
    bench = Bench(AllowedKeys([OWN], path))
    assert [bench.ask(key) for key in (OWN, ONE, TWO)] == [b"200", b"200", b"400"]
    path.write_text(f"  {TWO}\n")
    assert [bench.ask(key) for key in (OWN, ONE, TWO)] == [b"200", b"400", b"200"]


def test_without_a_file_only_this_machine_is_let_in() -> None:
    bench = Bench(AllowedKeys([OWN], None))
    assert [bench.ask(key) for key in (OWN, ONE)] == [b"200", b"400"]


def test_a_file_that_went_bad_changes_nothing(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = tmp_path / "allowed"
    path.write_text(f"{ONE}\n")
    bench = Bench(AllowedKeys([OWN], path))
    path.write_text(f"{TWO}\nnonsense\n")
    assert [bench.ask(key) for key in (ONE, TWO)] == [b"200", b"400"]
    assert "line 2" in caplog.messages[0]
    path.unlink()
    assert bench.ask(ONE) == b"200"


@pytest.mark.parametrize(("content", "reason"), [(b"x y\n", "line 1: must be"), (b"\xff\n", "not text")])
def test_a_file_that_is_bad_from_the_start_is_an_error(content: bytes, reason: str, tmp_path: Path) -> None:
    path = tmp_path / "allowed"
    path.write_bytes(content)
    with pytest.raises(BadKey, match=reason):
        AllowedKeys([OWN], path)
    with pytest.raises(BadKey, match="No such file"):
        read_allowed_keys(tmp_path / "none")


def test_a_refused_key_is_logged_once_a_minute_by_its_short_form(caplog: pytest.LogCaptureFixture) -> None:
    bench = Bench(AllowedKeys([OWN], None))
    for _ in range(10):
        bench.ask(ONE)
    (line,) = caplog.messages
    assert ONE[:8] in line
    assert ONE not in line
    assert "10.0.0.9" in line
    bench.ask(TWO)
    assert len(caplog.messages) == 2
    bench.now_s += LOG_INTERVAL_S
    bench.ask(ONE)
    assert len(caplog.messages) == 3


def test_what_is_remembered_of_refused_keys_is_bounded(caplog: pytest.LogCaptureFixture) -> None:
    bench = Bench(AllowedKeys([OWN], None))
    for number in range(MAX_REFUSED + 1):
        bench.ask(z85.encode(number.to_bytes(32, "big")).decode())
    assert len(caplog.messages) == MAX_REFUSED + 1
