"""Entry of the coordinator's process: opens the sockets, runs the loop until a signal ends it."""

import contextlib
import logging
import secrets
import signal
import socket
import time
from collections.abc import Iterator
from pathlib import Path
from types import FrameType

import zmq

from coordinator.admission import AdmissionLimits
from coordinator.cluster import ClusterState
from coordinator.config import CoordinatorConfig
from coordinator.loop import CoordinatorLoop, Door, Sockets, ZmqSocket
from coordinator.parts import Settings
from protocol.addresses import coordinator_addresses
from protocol.curve import CurveServer, KeyPair, load_keyring
from protocol.doorkeeper import AllowedKeys, Doorkeeper
from protocol.errors import AddressError, BadKey
from protocol.exit_codes import ExitCode
from protocol.identifiers import ClientIndex, new_incarnation
from protocol.lifeline import Lifeline, Notice
from protocol.malformed import MalformedLog
from protocol.sockets import SocketKind, bind_also, open_door, open_socket
from protocol.tenants import BadTenants, load_tenants

logger = logging.getLogger("shoal.coordinator")

CLIENT_INDEX_RANGE = 2**32
CLIENT_INDEX_STRIDE = 2**16
"""A coordinator gives indexes from a random multiple of the stride on: see ClientTable."""


def run(config: CoordinatorConfig, lifeline: Lifeline) -> int:
    """Serves until SIGTERM or SIGINT, then ends at once: no stream passes through here, nothing is to be drained.

    Returns the exit code: HOPELESS when an address, a key or the tenants file cannot be used.
    """
    try:
        _serve(config, lifeline)
    except (AddressError, BadKey, BadTenants) as error:
        logger.error("cannot start: %s", error)
        return ExitCode.HOPELESS
    logger.info("ends")
    return ExitCode.DRAINED


def _serve(config: CoordinatorConfig, lifeline: Lifeline) -> None:
    with _stop_on_signals() as stop, _open_sockets(config, stop) as sockets:
        loop = make_loop(config, sockets)
        logger.info("listens at %s, %s, %s", *_addresses(sockets))
        lifeline.notify(Notice("ready"))
        loop.run()
        lifeline.notify(Notice("draining"))


def make_loop(config: CoordinatorConfig, sockets: Sockets) -> CoordinatorLoop:
    """A loop around a core that knows nobody yet. Raises BadTenants."""
    settings = Settings(
        incarnation=new_incarnation(),
        first_client_index=ClientIndex(secrets.randbelow(CLIENT_INDEX_RANGE) * CLIENT_INDEX_STRIDE),
        limits=AdmissionLimits(
            max_requests=config.max_requests,
            max_waiting_requests=config.max_waiting_requests,
            max_queued_prefill_tokens=config.max_queued_prefill_tokens,
        ),
        heartbeat_timeout_s=config.heartbeat_timeout_s,
        tenants={} if config.tenants_file is None else load_tenants(Path(config.tenants_file)),
    )
    state = ClusterState(settings, time.monotonic())
    return CoordinatorLoop(sockets, state, MalformedLog(time.monotonic), time.monotonic)


@contextlib.contextmanager
def _open_sockets(config: CoordinatorConfig, stop: socket.socket) -> Iterator[Sockets]:
    keyring = load_keyring(config.secret_key_file, None)
    remote = None if config.listen is None else coordinator_addresses(config.listen)
    with zmq.Context() as context, contextlib.ExitStack() as stack:

        def bind(kind: SocketKind, address: str, remote_address: str | None) -> ZmqSocket:
            socket = stack.enter_context(open_socket(context, kind, address, keyring.for_server(address))[0])
            if remote_address is not None:
                if keyring.own is None:
                    raise BadKey("--listen needs --secret-key-file: `shoal keys make FILE` makes one")
                bind_also(socket, remote_address, CurveServer(keyring.own))
            return socket

        yield Sockets(
            door=None if keyring.own is None else _open_door(config, keyring.own, stack, context),  # before all others
            clients=bind(SocketKind.CLIENTS, config.clients_address, remote and remote.clients),
            engines=bind(SocketKind.ENGINES, config.engines_address, remote and remote.engines),
            cluster=bind(SocketKind.PUBLISHER, config.cluster_address, remote and remote.cluster),
            stop=stop,
        )


def _open_door(
    config: CoordinatorConfig, own: KeyPair, stack: contextlib.ExitStack, context: "zmq.Context[ZmqSocket]"
) -> Door:
    path = None if config.allowed_keys_file is None else Path(config.allowed_keys_file)
    keeper = Doorkeeper(AllowedKeys([own.public], path), time.monotonic)
    return Door(stack.enter_context(open_door(context)), keeper)


def _addresses(sockets: Sockets) -> list[str]:
    return [each.get_string(zmq.LAST_ENDPOINT) for each in (sockets.clients, sockets.engines, sockets.cluster)]


@contextlib.contextmanager
def _stop_on_signals() -> Iterator[socket.socket]:
    """A socket that becomes readable at SIGTERM or SIGINT: a signal wakes the poller, no handler does any work."""
    readable, writable = socket.socketpair()
    with readable, writable:
        writable.setblocking(False)
        previous = {number: signal.signal(number, _ignore) for number in (signal.SIGTERM, signal.SIGINT)}
        previous_fd = signal.set_wakeup_fd(writable.fileno())
        try:
            yield readable
        finally:
            signal.set_wakeup_fd(previous_fd)
            for number, handler in previous.items():
                signal.signal(number, handler)


def _ignore(number: int, frame: FrameType | None) -> None:
    """The wake-up socket has told the loop already."""
