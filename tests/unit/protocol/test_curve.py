"""Keys: made once, read by their owner only, never shown."""

import stat
from pathlib import Path

import pytest
import zmq

from protocol.curve import (
    CurveClient,
    CurveServer,
    Keyring,
    load_key_pair,
    load_keyring,
    new_key_pair,
    parse_public_key,
    save_secret_key,
    short_form,
)
from protocol.errors import BadKey

PAIR = new_key_pair()


def test_a_key_pair_survives_its_file_which_only_its_owner_may_read(tmp_path: Path) -> None:
    path = tmp_path / "machine.key"
    save_secret_key(PAIR, path)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert load_key_pair(path) == PAIR
    assert zmq.curve_public(PAIR.secret.encode()).decode() == PAIR.public


def test_a_key_file_is_never_overwritten(tmp_path: Path) -> None:
    path = tmp_path / "machine.key"
    save_secret_key(PAIR, path)
    with pytest.raises(BadKey, match="not overwritten"):
        save_secret_key(new_key_pair(), path)
    assert load_key_pair(path) == PAIR
    with pytest.raises(BadKey, match="No such file"):
        save_secret_key(PAIR, tmp_path / "no" / "folder")


def test_public_keys_need_no_quotes_and_secrets_are_not_shown() -> None:
    assert PAIR.public[0].isalnum()
    assert not set(PAIR.public) & set(" !$&()*;<>?[]^`{}|~#'\"\\")
    assert PAIR.secret not in repr(PAIR) + repr(CurveServer(PAIR)) + repr(Keyring(PAIR))


@pytest.mark.parametrize(
    ("content", "mode", "reason"),
    [
        (PAIR.secret.encode(), 0o640, "chmod 600"),
        (PAIR.secret.encode(), 0o604, "chmod 600"),
        (b"", 0o600, "does not hold a key"),
        (PAIR.secret[1:].encode(), 0o600, "does not hold a key"),
        (b"%" * 40, 0o600, "does not hold a key"),
        (b"\xff" * 40, 0o600, "not text"),
    ],
)
def test_a_key_file_that_is_none_is_refused_without_its_content(
    content: bytes, mode: int, reason: str, tmp_path: Path
) -> None:
    path = tmp_path / "machine.key"
    path.write_bytes(content)
    path.chmod(mode)
    with pytest.raises(BadKey, match=reason) as refusal:
        load_key_pair(path)
    assert str(path) in str(refusal.value)
    assert PAIR.secret[5:30] not in str(refusal.value)


@pytest.mark.parametrize("text", ["", "x" * 39, "x" * 41, '"' * 40, "%" * 40, "ä" * 40])
def test_what_is_no_public_key_is_refused(text: str) -> None:
    with pytest.raises(BadKey, match="shoal keys public"):
        parse_public_key(text)


def test_a_keyring_encrypts_tcp_alone(tmp_path: Path) -> None:
    path = tmp_path / "machine.key"
    save_secret_key(PAIR, path)
    other = new_key_pair().public
    keyring = load_keyring(str(path), other)
    assert keyring.for_server("tcp://10.0.0.1:1") == CurveServer(PAIR)
    assert keyring.for_coordinator("tcp://10.0.0.1:1") == keyring.for_peer(other) == CurveClient(PAIR, other)
    assert keyring.for_server("ipc:///run/s") is keyring.for_coordinator("ipc:///run/s") is None
    assert keyring.for_peer("") is None
    assert load_keyring(str(path), None).for_coordinator("tcp://10.0.0.1:1") is None


def test_keys_that_do_not_go_together_are_named(tmp_path: Path) -> None:
    with pytest.raises(BadKey, match="--secret-key-file"):
        load_keyring(None, PAIR.public)
    with pytest.raises(BadKey, match="--secret-key-file"):
        Keyring().for_peer(PAIR.public)
    save_secret_key(PAIR, tmp_path / "machine.key")
    with pytest.raises(BadKey, match="--coordinator-key: must be"):
        load_keyring(str(tmp_path / "machine.key"), "short")


def test_the_short_form_is_the_beginning() -> None:
    assert PAIR.public.startswith(short_form(PAIR.public))
    assert len(short_form(PAIR.public)) == 8
