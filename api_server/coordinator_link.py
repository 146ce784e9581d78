"""Our standing with the coordinator: greeted, welcomed, and what to tell it when it is back."""

import enum

import msgspec

from api_server.client_events import Send
from protocol.heartbeats import SILENCE_S
from protocol.identifiers import ClientIndex, Incarnation
from protocol.messages import Abort, ClientHello, ClientWelcome, EngineRun, RequestKey

MAX_PENDING_ABORTS = 16_384
"""Aborts kept while there is no coordinator; beyond, the oldest is dropped (stray outputs bring it up again)."""


class LinkState(enum.Enum):
    """The connection to the coordinator."""

    DOWN = enum.auto()
    GREETING = enum.auto()
    """Hello is sent."""
    WELCOMED = enum.auto()


class CoordinatorLink:
    """Owns the link's state. Every state may follow every other: connections come and go as they like."""

    def __init__(self, hello: ClientHello) -> None:
        """`hello` is what this process says of itself; its client index follows what a coordinator gives."""
        self._hello = hello
        self._greetings = 0
        self.state = LinkState.DOWN
        self._heard_s = float("-inf")
        self._pending_aborts: dict[RequestKey, None] = {}

    @property
    def is_welcomed(self) -> bool:
        """Whether the coordinator takes what we send."""
        return self.state is LinkState.WELCOMED

    def heard(self, now_s: float) -> None:
        """The coordinator has said something."""
        self._heard_s = now_s

    def is_answering(self, now_s: float) -> bool:
        """Whether the coordinator takes what we send, and has lately said something. A process that is stopped keeps
        its connections, so that the connection alone tells nothing."""
        return self.is_welcomed and now_s < self._heard_s + SILENCE_S

    @property
    def client_index(self) -> ClientIndex:
        """What the coordinator knows us by; -1 before the first welcome."""
        return self._hello.client_index

    def greet(self, engines: list[EngineRun], requests: list[tuple[RequestKey, Incarnation]]) -> Send:
        """There is a new connection. `engines` have unfinished requests of ours: `requests`, those accepted."""
        self.state = LinkState.GREETING
        self._greetings += 1
        return Send(msgspec.structs.replace(self._hello, engines=engines, requests=requests, greeting=self._greetings))

    def is_answered_by(self, welcome: ClientWelcome) -> bool:
        """Whether it is for the present connection, not one that an older connection left behind."""
        return self.state is not LinkState.DOWN and not self.is_outdated(welcome.greeting)

    def is_outdated(self, greeting: int) -> bool:
        """Whether it was said before our last Hello was heard; 0 tells nothing."""
        return greeting != 0 and greeting != self._greetings

    def lose(self) -> None:
        """The connection is gone."""
        self.state = LinkState.DOWN

    def welcome(self, welcome: ClientWelcome) -> bool:
        """The coordinator answered. Returns whether it gave us another client index than we had."""
        changed = welcome.client_index != self.client_index
        self._hello = msgspec.structs.replace(self._hello, client_index=welcome.client_index)
        self.state = LinkState.WELCOMED
        return changed

    def abort(self, keys: list[RequestKey]) -> list[Send]:
        """Asks to end these requests, now or once there is a coordinator again."""
        if not keys:
            return []
        if self.is_welcomed:
            return [Send(Abort(keys))]
        self._pending_aborts.update(dict.fromkeys(keys))
        while len(self._pending_aborts) > MAX_PENDING_ABORTS:
            del self._pending_aborts[next(iter(self._pending_aborts))]
        return []

    def take_pending_aborts(self) -> list[Send]:
        """What `abort` kept, as commands."""
        keys = list(self._pending_aborts)
        self._pending_aborts.clear()
        return self.abort(keys)

    def check_invariants(self) -> None:
        """For tests."""
        assert not (self._pending_aborts and self.is_welcomed)
        assert len(self._pending_aborts) <= MAX_PENDING_ABORTS
