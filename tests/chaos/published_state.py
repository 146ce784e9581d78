"""What a cluster's coordinators say of it, written down with the time, to hold errors against."""

import threading
import time
from pathlib import Path
from types import TracebackType
from typing import Self

import msgspec
import zmq

from protocol.addresses import CLUSTER, ipc_address
from protocol.codec import AT_SUBSCRIBER
from protocol.identifiers import EngineIndex, Incarnation
from protocol.messages import ClusterSnapshot, EngineState, EngineUpdate
from protocol.sockets import SocketKind, open_socket

STOP_LOOKING_MS = 100


class Span(msgspec.Struct, frozen=True):
    """A stretch of time, monotonic clock, seconds; also what a caller saw of one request."""

    begin_s: float
    end_s: float

    def meets(self, other: "Span") -> bool:
        """Whether they have a moment in common."""
        return self.begin_s <= other.end_s and other.begin_s <= self.end_s


class PublishedState:
    """Owner of a subscription; in a thread from entering the block to leaving it."""

    def __init__(self, run_directory: Path) -> None:
        self._address = ipc_address(run_directory, CLUSTER)
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self._engines: dict[EngineIndex, EngineState] = {}
        self.without_engine_core: list[Span] = []
        """When no engine core took requests, by the coordinator's word; the last one may last still."""
        self.coordinators: set[Incarnation] = set()
        self._is_down = False

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._stop.set()
        self._thread.join()

    def _run(self) -> None:
        with zmq.Context() as context, open_socket(context, SocketKind.SUBSCRIBER, self._address)[0] as socket:
            socket.setsockopt(zmq.SUBSCRIBE, b"")
            while not self._stop.is_set():
                if socket.poll(STOP_LOOKING_MS):
                    self._take(AT_SUBSCRIBER.decode(socket.recv_multipart()).message)
                self._note(time.monotonic())

    def _take(self, message: ClusterSnapshot | EngineUpdate) -> None:
        if isinstance(message, ClusterSnapshot):
            self.coordinators.add(message.incarnation)
            self._engines = {engine.index: engine for engine in message.engines}
        else:
            self._engines[message.engine.index] = message.engine

    def _note(self, now_s: float) -> None:
        if any(not engine.load.draining for engine in self._engines.values()):
            self._is_down = False
        elif self._is_down:
            self.without_engine_core[-1] = Span(self.without_engine_core[-1].begin_s, now_s)
        else:
            self._is_down = True
            self.without_engine_core.append(Span(now_s, now_s))
