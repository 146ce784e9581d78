"""The thread that encodes and sends outputs, so that the busy loop never waits for a socket."""

import math
import queue
import time
from typing import assert_never

import msgspec
import zmq

from engine_core.events import ClientsChanged, ClientStuck, CoreEvent, Joined
from engine_core.output_streams import OutputStreams, PushSocket
from engine_core.request_table import OutputsByClient
from engine_core.watched_push import WatchedPush
from protocol.curve import Keyring
from protocol.identifiers import ClientIndex, Incarnation
from protocol.messages import ClientAddress, wall_clock_s
from protocol.sockets import SocketKind, open_socket, open_watched_push


class StepOutputs(msgspec.Struct, frozen=True):
    """What a step produced."""

    outputs: OutputsByClient
    timestamp_s: float
    """Wall clock, seconds."""


class StreamsEnd(msgspec.Struct, frozen=True):
    """Nothing follows."""


OutputEvent = StepOutputs | ClientsChanged | Joined | StreamsEnd


class OutputThread:
    """Receives from its queue, sends through the streams, and tells the busy loop of API servers that are stuck.

    The queue has no limit of its own: the busy loop puts one entry a step, and sending never waits.
    """

    def __init__(
        self,
        context: zmq.SyncContext,
        keyring: Keyring,
        incarnation: Incarnation,
        inbox: "queue.SimpleQueue[CoreEvent]",
    ) -> None:
        """`inbox` is the busy loop's."""
        self._context = context
        self._keyring = keyring
        self._inbox = inbox
        self._streams = OutputStreams(incarnation, self._open_push)
        self.queue: queue.SimpleQueue[OutputEvent] = queue.SimpleQueue()

    def run(self) -> None:
        """Until StreamsEnd; the sockets are closed then."""
        try:
            while self._handle(self._next_event()):
                pass
        finally:
            self._streams.close()

    def _next_event(self) -> OutputEvent | None:
        """None when a stream has been silent for a while."""
        due_s = self._streams.next_tail_s
        try:
            return self.queue.get(timeout=None if due_s == math.inf else max(0.0, due_s - time.monotonic()))
        except queue.Empty:
            return None

    def _handle(self, event: OutputEvent | None) -> bool:
        match event:
            case None:
                self._give_up(self._streams.send_tails(wall_clock_s(), time.monotonic()))
            case StepOutputs(outputs, timestamp_s):
                self._give_up(self._streams.send(outputs, timestamp_s, time.monotonic()))
            case ClientsChanged(addresses):
                self._streams.set_clients(addresses)
            case Joined(engine_index):
                self._streams.joined(engine_index)
            case StreamsEnd():
                return False
            case _:
                assert_never(event)
        return True

    def _give_up(self, clients: list[ClientIndex]) -> None:
        for client_index in clients:
            self._inbox.put(ClientStuck(client_index))

    def _open_push(self, client: ClientAddress) -> PushSocket:
        curve = self._keyring.for_peer(client.public_key)
        if client.address.startswith("tcp://"):
            return WatchedPush(*open_watched_push(self._context, client.address, curve))
        return open_socket(self._context, SocketKind.OUTPUTS_OUT, client.address)[0]
