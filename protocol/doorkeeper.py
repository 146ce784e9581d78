"""Who may connect to a CURVE server of this process: the answer to libzmq's question at each handshake.

libzmq asks over an inproc socket, as ZeroMQ RFC 27 (ZAP) lays down, and the process answers in its own loop: there is
no thread for it. The list of public keys is read anew for each handshake, so a key that is added or removed counts
from the next connection on; connections that are made already stay. Whoever is refused is told so (status 400), and
does not come back by itself: libzmq gives the connection up for good.
"""

import logging
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

from zmq.utils import z85

from protocol.curve import PublicKey, parse_public_key, short_form
from protocol.errors import BadKey

logger = logging.getLogger("shoal.protocol")

ZAP_ADDRESS = "inproc://zeromq.zap.01"
ZAP_DOMAIN = b"shoal"
LOG_INTERVAL_S = 60.0
"""A key that is refused again and again is logged once in so long."""
MAX_REFUSED = 256
"""Refused keys that are remembered for that; at the limit the oldest is forgotten."""
_VERSION = b"1.0"
_ALLOWED = b"200"
_REFUSED = b"400"


class AllowedKeys:
    """Owner of the list of public keys that may connect."""

    def __init__(self, always: Iterable[PublicKey], path: Path | None) -> None:
        """`always` are allowed whatever the file says. Raises BadKey when it cannot be read or holds what is no key."""
        self._always = frozenset(always)
        self._path = path
        self._keys = frozenset[PublicKey]() if path is None else read_allowed_keys(path)

    def __contains__(self, key: object) -> bool:
        """Whether this key may connect, by the file as it is now; by what it last said when it cannot be read."""
        if key in self._always:
            return True
        if self._path is not None:
            try:
                self._keys = read_allowed_keys(self._path)
            except BadKey as error:
                logger.error("%s; its keys as they were before still hold", error)
        return key in self._keys


def read_allowed_keys(path: Path) -> frozenset[PublicKey]:
    """The keys of a file: the first word of each line, which may go on with whose it is.

    Empty lines, and those that begin with # and a space (# alone may begin a key), do not count. Raises BadKey.
    """
    try:
        lines = path.read_text().splitlines()
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not text"
        raise BadKey(f"allowed keys file {path} cannot be read: {reason}") from error
    keys: set[PublicKey] = set()
    for number, line in enumerate(lines, 1):
        words = line.split()
        if not words or words[0] == "#":
            continue
        try:
            keys.add(parse_public_key(words[0]))
        except BadKey as error:
            raise BadKey(f"allowed keys file {path}, line {number}: {error}") from error
    return frozenset(keys)


class Doorkeeper:
    """Owner of what was logged about whom; knows no socket.

    Whoever has one sends the `reply` to what comes by `protocol.sockets.open_door`, which must be opened before any
    CURVE server is, in the same context.
    """

    def __init__(self, allowed: AllowedKeys, clock: Callable[[], float]) -> None:
        """`clock` only goes forward, in seconds."""
        self._allowed = allowed
        self._clock = clock
        self._logged_s: dict[str, float] = {}
        """When a refused key was last logged."""

    def reply(self, question: Sequence[bytes]) -> list[bytes]:
        """The frames that answer a question of libzmq's (never of a peer's: a malformed one is our own fault)."""
        version, request_id, _domain, address, _routing_id, mechanism, key = question
        assert version == _VERSION and mechanism == b"CURVE", (version, mechanism)
        public = z85.encode(key).decode()
        if public in self._allowed:
            return [_VERSION, request_id, _ALLOWED, b"", public.encode(), b""]
        self._log_refused(public, address.decode(errors="replace"))
        return [_VERSION, request_id, _REFUSED, b"this key is not allowed", b"", b""]

    def _log_refused(self, public: str, address: str) -> None:
        now_s = self._clock()
        if now_s - self._logged_s.get(public, float("-inf")) < LOG_INTERVAL_S:
            return
        self._logged_s.pop(public, None)  # to the end, as the one that was logged last
        self._logged_s[public] = now_s
        if len(self._logged_s) > MAX_REFUSED:
            del self._logged_s[next(iter(self._logged_s))]
        logger.warning("refused a connection from %s: its key %s is not allowed here", address, short_form(public))

    def check_invariants(self) -> None:
        """Raises AssertionError when more is remembered than the limit says."""
        assert len(self._logged_s) <= MAX_REFUSED
