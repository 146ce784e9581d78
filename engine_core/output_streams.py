"""The streams of outputs to the API servers: one PUSH socket each, numbered messages, never a wait.

An API server whose queue is full has stopped reading (one whose address is no address never starts): its socket is
closed and its requests are given up, so that it cannot hold up the others or fill the memory. Should it send new
requests, it gets a new socket, and sees from the gap in the sequence numbers that it has lost outputs. The numbers
never start anew, also when a client index was gone for a while (a coordinator gave it up, and the next one took its
claim over).

Who has lost the last message of a stream would not see a gap. So a stream that has fallen silent sends its next
number again by itself, in a message without outputs, after each of TAIL_DELAYS_S.
"""

import logging
import math
from collections.abc import Callable
from typing import Protocol

import zmq

from engine_core.request_table import OutputsByClient
from protocol.codec import Frame, encode
from protocol.errors import AddressError, BadKey
from protocol.identifiers import ClientIndex, EngineIndex, Incarnation
from protocol.messages import ClientAddress, EngineCoreOutput, EngineCoreOutputs

logger = logging.getLogger("shoal.engine_core")

TAIL_DELAYS_S = (1.0, 2.0, 4.0)
"""Each after the message before it. More than one, for a connection that broke may take a while to come back."""
MAX_ENDED = 4_096
"""Clients that are gone whose next number is remembered; at the limit the one that left first is forgotten."""


class PushSocket(Protocol):
    """What is used of a zmq.Socket."""

    def send_multipart(self, msg_parts: list[Frame], flags: int = 0) -> object:
        """Raises zmq.Again when the queue is full."""
        ...

    def close(self, linger: int | None = None) -> None:
        """After `linger` milliseconds what is not sent is dropped; None: as the socket was configured."""
        ...


class _Stream:
    def __init__(self, address: ClientAddress, next_sequence: int) -> None:
        self.address = address
        self.socket: PushSocket | None = None
        self.next_sequence = next_sequence
        self.tails_left = 0
        self.tail_due_s = math.inf

    def sent(self, tails_left: int, now_s: float) -> None:
        self.next_sequence += 1
        self.tails_left = tails_left
        self.tail_due_s = now_s + TAIL_DELAYS_S[-tails_left] if tails_left else math.inf


class OutputStreams:
    """Owner of the PUSH sockets. All calls come from one thread."""

    def __init__(self, incarnation: Incarnation, open_push: Callable[[ClientAddress], PushSocket]) -> None:
        self._incarnation = incarnation
        self._open_push = open_push
        self._engine_index = EngineIndex(-1)
        self._streams: dict[ClientIndex, _Stream] = {}
        self._ended: dict[ClientIndex, int] = {}
        """Next sequence number of clients that are gone and were sent something."""

    def joined(self, engine_index: EngineIndex) -> None:
        """The coordinator has given this engine core its index."""
        self._engine_index = engine_index

    def set_clients(self, addresses: dict[ClientIndex, ClientAddress]) -> None:
        """These are the API servers now; the streams of all others end."""
        for client_index, stream in list(self._streams.items()):
            if addresses.get(client_index) != stream.address:
                self._end(client_index, stream)
        for client_index, address in addresses.items():
            if client_index not in self._streams:
                self._streams[client_index] = _Stream(address, self._ended.pop(client_index, 0))

    @property
    def next_tail_s(self) -> float:
        """When `send_tails` has something to send, by the clock of `send`; infinity when nothing is due."""
        return min((stream.tail_due_s for stream in self._streams.values()), default=math.inf)

    def send(self, outputs: OutputsByClient, timestamp_s: float, now_s: float) -> list[ClientIndex]:
        """Sends one step's outputs; returns the API servers that do not take theirs. `now_s` only goes forward.

        Outputs for an API server that is gone are dropped: the busy loop is about to hear that it is.
        """
        return [
            client_index
            for client_index, outs in outputs.items()
            if client_index in self._streams
            and not self._send_to(client_index, outs, timestamp_s, len(TAIL_DELAYS_S), now_s)
        ]

    def send_tails(self, timestamp_s: float, now_s: float) -> list[ClientIndex]:
        """Shows where they end to the API servers whose streams have been silent; returns those that do not listen."""
        due = [(index, stream) for index, stream in self._streams.items() if stream.tail_due_s <= now_s]
        return [
            index for index, stream in due if not self._send_to(index, [], timestamp_s, stream.tails_left - 1, now_s)
        ]

    def close(self) -> None:
        """Ends all streams; what is queued is still sent, for a bounded time."""
        for stream in self._streams.values():
            _close(stream, linger_ms=None)
        self._streams.clear()

    def _end(self, client_index: ClientIndex, stream: _Stream) -> None:
        _close(stream, linger_ms=0)
        del self._streams[client_index]
        if stream.next_sequence:
            self._ended[client_index] = stream.next_sequence
            if len(self._ended) > MAX_ENDED:
                del self._ended[next(iter(self._ended))]

    def check_invariants(self) -> None:
        """Raises AssertionError when a client is both there and gone, or the limit is broken."""
        assert not self._streams.keys() & self._ended.keys()
        assert len(self._ended) <= MAX_ENDED

    def _send_to(
        self,
        client_index: ClientIndex,
        outputs: list[EngineCoreOutput],
        timestamp_s: float,
        tails_left: int,
        now_s: float,
    ) -> bool:
        stream = self._streams[client_index]
        message = EngineCoreOutputs(
            self._engine_index, self._incarnation, stream.next_sequence, timestamp_s, outputs, client_index
        )
        stream.sent(tails_left, now_s)
        try:
            if stream.socket is None:
                stream.socket = self._open_push(stream.address)
            stream.socket.send_multipart(encode(message), zmq.NOBLOCK)
        except (AddressError, BadKey, zmq.ZMQError) as error:  # also zmq.Again: its queue is full
            logger.warning("API server %d does not take its outputs (%s): its requests end", client_index, error)
            _close(stream, linger_ms=0)
            return False
        return True


def _close(stream: _Stream, linger_ms: int | None) -> None:
    if stream.socket is not None:
        stream.socket.close(linger_ms)
        stream.socket = None
