"""CURVE keys: one pair for each machine, whom a connection must prove to be, and what a socket needs of them.

Keys are Z85 text of 40 characters, as ZeroMQ's tools write them (ZeroMQ RFC 26 CurveZMQ, RFC 32 Z85). A machine's
secret key stays in a file of its own; everybody else knows the machine by its public key.
"""

import contextlib
import os
import re
import stat
import struct
from pathlib import Path
from typing import NewType

import msgspec
import zmq
from zmq.utils import z85

from protocol.errors import BadKey

PublicKey = NewType("PublicKey", str)
"""40 characters of Z85."""
KEY_CHARACTERS = 40
_SHORT = 8
_NEEDS_NO_QUOTES = re.compile(r"[0-9A-Za-z][0-9A-Za-z.:+=/@%-]*")


class KeyPair(msgspec.Struct, frozen=True):
    """Who a machine is."""

    public: PublicKey
    secret: str

    def __repr__(self) -> str:
        return f"KeyPair({self.public!r}, secret=...)"


class CurveServer(msgspec.Struct, frozen=True):
    """The end that binds: lets in whom the process's doorkeeper knows (protocol.doorkeeper)."""

    own: KeyPair


class CurveClient(msgspec.Struct, frozen=True):
    """The end that connects: to nobody but the holder of the server's secret key."""

    own: KeyPair
    server: PublicKey


class Keyring(msgspec.Struct, frozen=True):
    """The keys of one process. TCP is encrypted where there are keys for it; ipc never needs to be."""

    own: KeyPair | None = None
    coordinator: PublicKey | None = None

    def for_server(self, address: str) -> CurveServer | None:
        """What a socket needs that binds here."""
        return CurveServer(self.own) if self.own is not None and address.startswith("tcp://") else None

    def for_coordinator(self, address: str) -> CurveClient | None:
        """What a socket needs that connects to the coordinator here."""
        if self.own is None or self.coordinator is None or not address.startswith("tcp://"):
            return None
        return CurveClient(self.own, self.coordinator)

    def for_peer(self, public: str) -> CurveClient | None:
        """What a socket needs that connects to the holder of this key; an empty one does not encrypt. Raises BadKey."""
        if not public:
            return None
        if self.own is None:
            raise BadKey(f"its connections are encrypted (key {short_form(public)}): give --secret-key-file")
        return CurveClient(self.own, parse_public_key(public))


def load_keyring(secret_key_file: str | None, coordinator_key: str | None) -> Keyring:
    """The keys that a role's options name. Raises BadKey, which names the option."""
    if coordinator_key is not None and secret_key_file is None:
        raise BadKey("--coordinator-key needs --secret-key-file: `shoal keys make FILE` makes one")
    own = None if secret_key_file is None else load_key_pair(Path(secret_key_file))
    try:
        coordinator = None if coordinator_key is None else parse_public_key(coordinator_key)
    except BadKey as error:
        raise BadKey(f"--coordinator-key: {error}") from error
    return Keyring(own, coordinator)


def new_key_pair() -> KeyPair:
    """A fresh pair, whose public key needs no quotes in a shell. Raises BadKey when libzmq was built without CURVE.

    One pair in about 3,000 is like that, so this takes some tenths of a second, and 12 of the key's 256 bits.
    """
    _require_curve()
    while True:
        public, secret = (key.decode() for key in zmq.curve_keypair())
        if _NEEDS_NO_QUOTES.fullmatch(public):
            return KeyPair(PublicKey(public), secret)


def load_key_pair(path: Path) -> KeyPair:
    """The pair whose secret key is in this file. Raises BadKey, also for a file that other users may read."""
    _require_curve()
    try:
        with path.open() as file:
            mode = stat.S_IMODE(os.fstat(file.fileno()).st_mode)
            secret = file.read(2 * KEY_CHARACTERS).strip()
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not text"
        raise BadKey(f"secret key file {path} cannot be read: {reason}") from error
    if mode & 0o077:
        raise BadKey(f"secret key file {path} is open to other users: chmod 600 it")
    if not _is_key(secret):
        raise BadKey(f"secret key file {path} does not hold a key: `shoal keys make` writes one")
    return KeyPair(PublicKey(zmq.curve_public(secret.encode()).decode()), secret)


def save_secret_key(pair: KeyPair, path: Path) -> None:
    """Writes the secret key to a new file (mode 0600). Raises BadKey when there is one, or it cannot be written."""
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    except FileExistsError as error:
        raise BadKey(f"{path} is there already, and is not overwritten: who knows its key would be shut out") from error
    except OSError as error:
        raise BadKey(f"{path} cannot be written: {error.strerror}") from error
    try:
        with os.fdopen(descriptor, "w") as file:
            file.write(pair.secret + "\n")
    except OSError as error:
        with contextlib.suppress(OSError):
            path.unlink()
        raise BadKey(f"{path} cannot be written: {error.strerror}") from error


def parse_public_key(text: str) -> PublicKey:
    """Raises BadKey when the text is no key."""
    if not _is_key(text):
        raise BadKey(f"must be a public key of {KEY_CHARACTERS} characters, as `shoal keys public FILE` prints it")
    return PublicKey(text)


def short_form(public: str) -> str:
    """Enough of a public key to tell it from others in a log."""
    return public[:_SHORT]


def _is_key(text: str) -> bool:
    if len(text) != KEY_CHARACTERS or not text.isascii():
        return False
    try:
        z85.decode(text.encode())
    except (KeyError, struct.error):  # a character that is none of Z85's; five that stand for more than 32 bits
        return False
    return True


def _require_curve() -> None:
    if not zmq.has("curve"):
        raise BadKey("this build of libzmq has no CURVE: install pyzmq from its wheel")
