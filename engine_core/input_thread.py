"""The thread that owns the socket to the coordinator: receives, decodes, lets the link decide, sends.

It wakes for messages, for the connection's ups and downs, for a status that the busy loop wants known at once, and
once a second to report; then it also looks whether the busy loop is stuck (engine_core.step_watch).
"""

import faulthandler
import logging
import os
import queue
import time
from typing import assert_never

import zmq

from engine_core.coordinator_link import (
    CoordinatorLink,
    DropMalformed,
    EngineIdentity,
    LinkCommand,
    LinkEvent,
    Send,
    SendFailed,
    TellCore,
    TellOutputs,
)
from engine_core.events import CoordinatorRefused, CoreEvent, CoreStatus, GrammarDenied, Joined, RequestArrived
from engine_core.grammar_thread import GrammarThread
from engine_core.output_thread import OutputEvent
from engine_core.status_board import StatusBoard
from engine_core.step_watch import StepWatch
from protocol.codec import AT_ENGINE, encode
from protocol.curve import CurveClient
from protocol.errors import ProtocolError
from protocol.exit_codes import ExitCode
from protocol.handshake_log import HandshakeLog
from protocol.heartbeats import HEARTBEAT_S
from protocol.identifiers import member_identity
from protocol.lifeline import Lifeline, Notice
from protocol.malformed import MalformedLog
from protocol.messages import EngineCoreRequest
from protocol.sockets import ConnectionEvent, SocketKind, connection_event, open_member, open_socket

logger = logging.getLogger("shoal.engine_core")

_DOORBELL = "inproc://engine-core-status"
MAX_MESSAGES_AT_ONCE = 1_000
"""Messages taken from the socket before the connection and the status are looked at again."""


class InputThread:
    """Made and closed by the main thread, run in its own."""

    def __init__(
        self,
        context: zmq.SyncContext,
        address: str,
        curve: CurveClient | None,
        identity: EngineIdentity,
        inbox: "queue.SimpleQueue[CoreEvent]",
        outputs: "queue.SimpleQueue[OutputEvent]",
        lifeline: Lifeline,
        step_timeout_s: float,
        grammars: GrammarThread | None = None,
    ) -> None:
        """`inbox` is the busy loop's, `outputs` the output thread's; without `grammars` none is taken. Raises
        AddressError."""
        self._link = CoordinatorLink(identity)
        self._inbox = inbox
        self._outputs = outputs
        self._lifeline = lifeline
        self._grammars = grammars
        self._step_watch = StepWatch(step_timeout_s)
        self._has_joined = False
        self._malformed_log = MalformedLog(time.monotonic)
        self._malformed_total = 0
        self._handshake_log = HandshakeLog(f"the coordinator at {address}", time.monotonic)
        self._bell, _ = open_socket(context, SocketKind.INPROC_IN, _DOORBELL)
        self._bell_rope, _ = open_socket(context, SocketKind.INPROC_OUT, _DOORBELL)
        self.board = StatusBoard(self._ring)
        self._member, self._monitor = open_member(
            context, address, member_identity(identity.name, identity.incarnation), curve
        )
        self._poller = zmq.Poller()
        for socket in (self._member, self._monitor, self._bell):
            self._poller.register(socket, zmq.POLLIN)

    def run(self) -> None:
        """Until the board is closed; its last status is still reported."""
        closed = False
        while not closed:
            ready = dict(self._poller.poll(self._timeout_ms()))
            # What an earlier coordinator sent is taken before the news of a newer connection.
            if self._member in ready:
                self._receive()
            if self._monitor in ready:
                self._connection_changed(connection_event(self._monitor.recv_multipart()))
            if self._bell in ready:
                self._bell.recv()
            closed = self.board.is_closed
            status = self.board.take()
            if status is not None:
                self._handle(status)
                self._end_if_hung(status)

    def _connection_changed(self, event: ConnectionEvent) -> None:
        if event is ConnectionEvent.BROKEN_OFF:
            self._handshake_log.broken_off()
        self._handle(event)

    def _end_if_hung(self, status: CoreStatus) -> None:
        """A step that hangs cannot be ended, only its process: what it had goes on elsewhere."""
        hung_for_s = self._step_watch.hung_for_s(status, time.monotonic())
        if hung_for_s is not None:
            logger.critical("no step has ended for %.0f s: ending; where the threads are:", hung_for_s)
            faulthandler.dump_traceback()
            os._exit(ExitCode.FAULT)

    def close(self) -> None:
        """Closes the sockets. After `run` has returned, or instead of it."""
        self._member.disable_monitor()
        for socket in (self._monitor, self._member, self._bell, self._bell_rope):
            socket.close()

    def _ring(self) -> None:
        """Called in the busy loop's thread, the only one that uses this end of the bell."""
        try:
            self._bell_rope.send(b"", zmq.NOBLOCK)
        except zmq.Again:
            logger.debug("the doorbell rings already")

    def _timeout_ms(self) -> int:
        wait_s = self._link.next_report_s - time.monotonic()
        return max(1, int(min(wait_s, HEARTBEAT_S) * 1_000) + 1) if wait_s > 0 else int(HEARTBEAT_S * 1_000)

    def _receive(self) -> None:
        for _ in range(MAX_MESSAGES_AT_ONCE):
            try:
                frames = self._member.recv_multipart(zmq.NOBLOCK)
            except zmq.Again:
                return
            try:
                self._handle(AT_ENGINE.decode(frames))
            except ProtocolError as error:
                self._drop(error)

    def _handle(self, event: LinkEvent) -> None:
        for command in self._link.handle(event, time.monotonic(), self._malformed_total):
            self._execute(command)

    def _execute(self, command: LinkCommand) -> None:
        match command:
            case Send(message, buffers):
                try:
                    self._member.send_multipart(encode(message, *buffers), zmq.NOBLOCK)
                except zmq.Again:
                    self._handle(SendFailed())
            case TellCore(event):
                if isinstance(event, CoordinatorRefused):
                    logger.error("the coordinator refuses this engine core: %s", event.reason)
                self._inbox.put(event)
                if isinstance(event, RequestArrived):
                    self._compile_grammar(event.request)
            case TellOutputs(news):
                if isinstance(news, Joined):
                    self._announce(news)
                self._outputs.put(news)
            case DropMalformed(reason):
                self._drop(ProtocolError(reason))
            case _:
                assert_never(command)

    def _compile_grammar(self, request: EngineCoreRequest) -> None:
        """After the request itself: the busy loop knows whom the outcome is for."""
        if request.grammar is None:
            return
        if self._grammars is None:
            self._inbox.put(GrammarDenied(request.key, "this engine core takes no grammars"))
        else:
            self._grammars.compile(request.key, request.grammar)

    def _drop(self, error: ProtocolError) -> None:
        self._malformed_total += 1
        self._malformed_log.drop(error)

    def _announce(self, joined: Joined) -> None:
        logger.info("joined coordinator %s as engine core %d", joined.coordinator, joined.engine_index)
        if not self._has_joined:
            self._has_joined = True
            self._lifeline.notify(Notice("ready"))
