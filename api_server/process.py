"""An API server's life: open, serve, drain, close. Imports prometheus_client (see `metrics_files.prepare`)."""

import asyncio
import logging
import os
import signal
import socket
from collections.abc import Coroutine
from pathlib import Path
from typing import Any

import zmq.asyncio

from api_server.app import create_app
from api_server.cluster_metrics import cluster_families
from api_server.config import ApiServerConfig
from api_server.engine_client import ClusterRefusedUs, EngineClient, Patience
from api_server.http_server import HttpServer, raise_file_limit
from api_server.http_socket import bind_http_socket, inherited_http_socket, url_of
from api_server.links import Links
from api_server.metrics import Metrics
from api_server.metrics_page import MetricsPage
from api_server.parsers.names import ParserNames
from api_server.uploads import Uploads
from protocol.addresses import advertised
from protocol.curve import Keyring, load_keyring
from protocol.doorkeeper import AllowedKeys
from protocol.exit_codes import ExitCode
from protocol.heartbeats import HEARTBEAT_S
from protocol.identifiers import member_identity, new_incarnation
from protocol.lifeline import Lifeline, Notice
from protocol.messages import PROTOCOL_VERSION, ClientHello, wall_clock_s

logger = logging.getLogger("shoal.api_server")

ERROR_EVENT_GRACE_S = 2.0
"""After the drain's deadline, for the routes to tell their callers."""
HURRIED_GRACE_S = 0.25
"""The same after a second signal: enough for callers who read."""
CLOSE_TIMEOUT_S = 1.0


class _Shutdown:
    """What signals ask for: the first to drain, the second to hurry."""

    def __init__(self) -> None:
        self.requested = asyncio.Event()
        self.hurried = asyncio.Event()
        for number in (signal.SIGTERM, signal.SIGINT):
            asyncio.get_running_loop().add_signal_handler(number, self._on_signal)

    def _on_signal(self) -> None:
        (self.hurried if self.requested.is_set() else self.requested).set()


async def serve(config: ApiServerConfig, lifeline: Lifeline) -> int:
    """Serves until a signal ends it; returns the exit code.

    Raises AddressError, BadKey, BadKeys, BindError or OSError when it cannot start; later, in an exception
    group, what a fault of ours raised.
    """
    raise_file_limit()
    shutdown = _Shutdown()
    incarnation = new_incarnation()
    context = zmq.asyncio.Context()
    identity = member_identity(config.name, incarnation)
    keyring = load_keyring(config.secret_key_file, config.coordinator_key)
    allowed = _allowed_keys(config, keyring)
    addresses = config.clients_address, config.cluster_address, config.output_address
    links = Links(context, *addresses, identity, keyring, allowed)
    try:
        hello = ClientHello(
            PROTOCOL_VERSION,
            config.name,
            incarnation,
            advertised(links.output_address, config.advertised_address),
            os.getpid(),
            output_public_key=keyring.own.public if keyring.own is not None and allowed is not None else "",
            started_s=wall_clock_s(),
        )
        return await _serve(config, lifeline, shutdown, links, hello)
    finally:
        links.close()
        context.term()


def _allowed_keys(config: ApiServerConfig, keyring: Keyring) -> AllowedKeys | None:
    """Who may connect to the output address, engine cores of this and of the coordinator's machine in any case.

    None when it is not encrypted. Raises BadKey.
    """
    if keyring.for_server(config.output_address) is None or keyring.own is None:
        return None
    always = [key for key in (keyring.own.public, keyring.coordinator) if key is not None]
    return AllowedKeys(always, None if config.allowed_keys_file is None else Path(config.allowed_keys_file))


async def _serve(
    config: ApiServerConfig, lifeline: Lifeline, shutdown: _Shutdown, links: Links, hello: ClientHello
) -> int:
    metrics = Metrics()
    clock = asyncio.get_running_loop().time
    patience = Patience(config.admission_timeout_s, config.resume_timeout_s)
    parsers = ParserNames(config.tool_call_parser, config.reasoning_parser)
    client = EngineClient(links, hello, patience, metrics, clock, parsers)
    shared = Path(config.metrics_dir) if config.metrics_dir is not None else None
    page = MetricsPage(metrics, lambda: cluster_families(client.view, client.is_connected), shared)
    uploads = Uploads(config.max_body_bytes)
    server = HttpServer(create_app(client, page, uploads, config))
    listener = _listener(config)
    logger.info("listening on %s", url_of(listener))
    exit_code = ExitCode.DRAINED
    try:
        async with asyncio.TaskGroup() as tasks:
            background = [
                tasks.create_task(client.run(), name="engine client"),
                tasks.create_task(_tick(client, server, uploads), name="tick"),
            ]
            await server.start(listener)
            lifeline.notify(Notice("ready"))
            background.append(tasks.create_task(_tell_when_serving(client, lifeline), name="serving notice"))
            await shutdown.requested.wait()
            lifeline.notify(Notice("draining"))
            await drain(client, server, config.drain_timeout_s, shutdown.hurried)
            for task in background:
                task.cancel()
            if shutdown.hurried.is_set():
                exit_code = ExitCode.FORCED
    except* ClusterRefusedUs as refusals:
        logger.error("the coordinator refused this API server: %s", refusals.exceptions)
        exit_code = ExitCode.HOPELESS
    return exit_code


def _listener(config: ApiServerConfig) -> socket.socket:
    return bind_http_socket(config.host, config.port) if config.fd is None else inherited_http_socket(config.fd)


async def _tell_when_serving(client: EngineClient, lifeline: Lifeline) -> None:
    await client.has_model.wait()
    lifeline.notify(Notice("serving"))


async def _tick(client: EngineClient, server: HttpServer, uploads: Uploads) -> None:
    """The only thing that wakes an idle API server, with the answers to its heartbeats."""
    while True:
        await asyncio.sleep(HEARTBEAT_S)
        client.second_passed()
        await server.second_passed()
        uploads.second_passed()


async def drain(client: EngineClient, server: HttpServer, timeout_s: float, hurried: asyncio.Event) -> None:
    """Stops listening, lets open requests finish, ends what is left at the deadline, or at once when hurried."""
    logger.info("draining: open requests have %.0f s", timeout_s)
    client.start_draining()
    server.stop_listening()
    if not await _is_done_within(server.left(), timeout_s, hurried):
        logger.warning("ending the requests that are left")
        client.stop_taking()
        client.fail_all("the server is shutting down")
        if hurried.is_set() or not await _is_done_within(server.idle(), ERROR_EVENT_GRACE_S, hurried):
            await _is_done_within(server.idle(), HURRIED_GRACE_S, asyncio.Event())
    await server.close(CLOSE_TIMEOUT_S)
    logger.info("drained")


async def _is_done_within(wait: Coroutine[Any, Any, None], timeout_s: float, hurried: asyncio.Event) -> bool:
    done = asyncio.create_task(wait)
    hurry = asyncio.create_task(hurried.wait())
    await asyncio.wait((done, hurry), timeout=timeout_s, return_when=asyncio.FIRST_COMPLETED)
    is_done = done.done()
    for waiter in (done, hurry):
        waiter.cancel()
    return is_done
