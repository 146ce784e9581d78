"""The shell of `shoal serve`: resolves the model, binds the socket, then does what the core decides.

It waits for one of three things: an exit or a notice of a child, a signal, the core's next deadline. Nothing polls.
"""

import asyncio
import contextlib
import logging
import os
import signal
import socket
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, assert_never

import msgspec

from api_server.config import ApiServerConfig
from api_server.http_socket import BindError, bind_http_socket
from deploy.child import Child, start_child
from deploy.config import SERVE_OPTIONS, ServeConfig
from deploy.control_messages import ControlRequest, Done, Progress, Scale
from deploy.control_server import ControlServer
from deploy.coordinator_notices import CoordinatorNotices
from deploy.errors import StartError
from deploy.exit_causes import describe_exit
from deploy.launch import Launch, ProcessSpec
from deploy.launch_preparation import prepare_launch, ready_line
from deploy.load_display import LoadDisplay
from deploy.machine_links import machine_links
from deploy.run_directory import RunDirectory, remove_stale
from deploy.silence_watch import SilenceWatch
from deploy.start_checks import check_machine, check_options
from deploy.supervised_process import Role
from deploy.supervisor_core import FAILURES_BEFORE_READY, Supervisor
from deploy.supervisor_events import (
    AnnounceFailure,
    AnnounceHung,
    AnnounceOverdue,
    AnnounceReady,
    AnnounceRestart,
    Answer,
    AskForSnapshot,
    Command,
    Event,
    Exited,
    Finish,
    Hung,
    Kill,
    MachineRefused,
    Ready,
    Report,
    Requested,
    Snapshot,
    Start,
    StopRequested,
    TellCoordinator,
    Terminate,
    TimePassed,
)
from protocol.errors import AddressError
from protocol.lifeline import Notice
from protocol.messages import ClusterSnapshot

logger = logging.getLogger("shoal.supervisor")


def serve(values: Mapping[str, Any]) -> int:
    """Runs a cluster with these options (those that were given); returns the exit code."""
    try:
        return asyncio.run(_serve(values))
    except (StartError, BindError, AddressError) as error:
        logger.error("%s", error)
        return 1


async def _serve(values: Mapping[str, Any]) -> int:
    own_names = {option.name for option in SERVE_OPTIONS}
    config = msgspec.convert({name: value for name, value in values.items() if name in own_names}, ServeConfig)
    # Whatever lacks a value keeps the default that its role declares.
    defaults = ApiServerConfig(clients_address="", cluster_address="", output_address="")
    host, port = values.get("host", defaults.host), values.get("port", defaults.port)
    drain_timeout_s = values.get("drain_timeout_s", defaults.drain_timeout_s)

    events: asyncio.Queue[Event] = asyncio.Queue()
    loop = asyncio.get_running_loop()
    for signal_number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(signal_number, events.put_nowait, StopRequested())
    for stale in remove_stale():
        logger.info("removed %s, left by a supervisor that died", stale)
    check_options(config.model, values)
    links = machine_links(config, values)
    with _listening_socket(host, port, config.api_servers) as listening:
        launch = await prepare_launch(config, values, links, events)
        if launch is None:
            return 0
        directory = RunDirectory(Path(config.run_dir) if config.run_dir else None)
        try:
            line = ready_line(listening, launch, config)
            return await Cluster(launch, directory, listening, drain_timeout_s, line, events).run()
        finally:
            directory.remove()


@contextlib.contextmanager
def _listening_socket(host: str, port: int, api_servers: int) -> Iterator[socket.socket | None]:
    """For the API servers; None without any. Raises BindError."""
    if not api_servers:
        yield None
        return
    with bind_http_socket(host, port) as listening:
        yield listening


_READY_STATES = {Role.API_SERVER: "serving"}
"""The notice by which a role counts as ready: an API server without a model answers with 503 alone."""


class Cluster:
    """Owner of the running processes; carries out the core's commands."""

    def __init__(
        self,
        launch: Launch,
        directory: RunDirectory,
        listening: socket.socket | None,
        drain_timeout_s: float,
        ready_line: str,
        events: "asyncio.Queue[Event]",
    ) -> None:
        self._launch = launch
        self._directory = directory
        self._listening = listening
        names = [(spec.name, role) for role, spec in launch.specs(directory, self._http_fd, os.environ)]
        self._core = Supervisor(names, drain_timeout_s)
        self._events = events
        self._ready_line = ready_line
        coordinator, keyring = launch.links.coordinator(directory), launch.links.keyring
        self._notices = CoordinatorNotices(coordinator.clients, keyring.for_coordinator(coordinator.clients))
        curve = keyring.for_coordinator(coordinator.cluster)
        self._silence = SilenceWatch(coordinator.cluster, time.monotonic, curve)
        self._control = ControlServer(self._on_request)
        self._display = LoadDisplay()
        self._children: dict[str, Child] = {}
        """The last process of each name, dead or alive; none when its start failed."""
        self._reasons: dict[str, str] = {}
        """Why the last process of a name says that it ends."""
        self._failure: str | None = None
        self._exit_code: int | None = None

    async def run(self) -> int:
        """Runs until all processes are gone; returns the exit code."""
        try:
            async with asyncio.TaskGroup() as tasks:  # whichever fails ends the supervisor, and that its children
                links = [
                    tasks.create_task(self._notices.run(self._on_refused), name="coordinator notices"),
                    tasks.create_task(self._silence.run(self._on_snapshot), name="silence watch"),
                ]
                exit_code = await self._handle_events(tasks)
                for link in links:
                    link.cancel()
            return exit_code
        finally:
            for child in self._children.values():
                child.kill()
            self._notices.close()
            self._control.close()
            self._silence.close()

    def _on_request(self, request: ControlRequest, ticket: int) -> None:
        try:
            if isinstance(request, Scale):
                self._check_scale(request)
        except StartError as error:
            self._control.answer(ticket, Done(False, str(error)))
        else:
            logger.info("asked to %s", request)
            self._events.put_nowait(Requested(request, ticket))

    def _check_scale(self, request: Scale) -> None:
        """Raises StartError."""
        if request.engines is not None:
            if not self._launch.model:
                raise StartError("this machine was started without engine cores, and so without a model")
            check_machine(self._launch.model, request.engines, self._launch.values.get("kv_cache_memory_bytes"))
        if request.api_servers is not None and self._listening is None:
            raise StartError("this machine was started without API servers, and so without an HTTP socket")

    async def _handle_events(self, tasks: asyncio.TaskGroup) -> int:
        await self._control.start(self._directory.control)
        await self._execute(self._core.start(time.monotonic()), tasks)
        while self._exit_code is None:
            event = await self._next_event()
            commands = self._core.handle(event, time.monotonic())
            if self._core.is_ending and self._listening is not None:
                self._listening.close()  # so that new connections are refused, not left waiting
            await self._execute(commands, tasks)
        if self._failure is not None:
            logger.error("%s", self._failure)  # again, for it stands far above by now
        return self._exit_code

    async def _next_event(self) -> Event:
        deadline_s = self._core.next_deadline_s()
        try:
            async with asyncio.timeout(None if deadline_s is None else max(0.0, deadline_s - time.monotonic())):
                return await self._events.get()
        except TimeoutError:
            return TimePassed()

    async def _execute(self, commands: Sequence[Command], tasks: asyncio.TaskGroup) -> None:
        started: list[str] = []
        for command in commands:
            match command:
                case Start(name):
                    if child := await self._start(name, tasks):
                        started.append(f"{name} (pid {child.pid})")
                case Terminate(name):
                    if child := self._children.get(name):
                        child.terminate()
                case Kill(name):
                    if child := self._children.get(name):
                        child.kill()
                case TellCoordinator(name, by_fault):
                    if child := self._children.get(name):
                        await self._notices.tell_exited(self._launch.links.member_name(name), child.pid, by_fault)
                case AskForSnapshot():
                    self._silence.subscribe_anew()
                case Finish(exit_code):
                    self._exit_code = exit_code
                case Report(ticket, text):
                    self._control.answer(ticket, Progress(text))
                case Answer(ticket, ok, text):
                    logger.log(logging.INFO if ok else logging.WARNING, "asked to change the cluster: %s", text)
                    self._control.answer(ticket, Done(ok, text))
                case AnnounceReady() | AnnounceRestart() | AnnounceFailure() | AnnounceOverdue() | AnnounceHung():
                    self._announce(command)
                case _:
                    assert_never(command)
        if started:
            logger.info("started %s", ", ".join(started))

    async def _start(self, name: str, tasks: asyncio.TaskGroup) -> Child | None:
        self._children.pop(name, None)
        self._reasons.pop(name, None)
        try:
            child = await start_child(self._spec(name))
        except OSError as error:  # no memory or no process left: like a death, to be tried again
            logger.error("%s cannot be started: %s", name, error)
            self._events.put_nowait(Exited(name, 1))
            return None
        self._children[name] = child
        ready_state = _READY_STATES.get(self._core.role(name), "ready")
        tasks.create_task(self._watch(child, ready_state), name=f"watch {name}")
        return child

    @property
    def _http_fd(self) -> int:
        """-1 without API servers."""
        return -1 if self._listening is None else self._listening.fileno()

    def _spec(self, name: str) -> ProcessSpec:
        """As it is started now: engine cores share the machine with as many as there are at this moment."""
        launch = msgspec.structs.replace(self._launch, engines=self._core.count(Role.ENGINE_CORE))
        return launch.spec(self._core.role(name), name, self._directory, self._http_fd, os.environ)

    async def _watch(self, child: Child, ready_state: str) -> None:
        name = child.spec.name
        code = await child.wait(lambda notice: self._on_notice(name, notice, ready_state))
        self._display.forget(name)
        self._events.put_nowait(Exited(name, code))

    def _on_snapshot(self, snapshot: ClusterSnapshot) -> None:
        for process in snapshot.silent:
            name = self._launch.links.name_here(process.name)
            child = self._children.get(name)
            if child is not None and child.pid == process.pid:  # not another machine's, nor the next one of this name
                self._events.put_nowait(Hung(name))
        engine_cores = frozenset(self._launch.links.name_here(engine.name) for engine in snapshot.engines)
        self._events.put_nowait(Snapshot(snapshot.incarnation, engine_cores))

    def _on_refused(self, reason: str) -> None:
        self._events.put_nowait(MachineRefused(reason))

    def _on_notice(self, name: str, notice: Notice, ready_state: str) -> None:
        self._display.update(name, notice, time.monotonic())
        if notice.state == "failed":
            self._reasons[name] = notice.detail
        if notice.state == ready_state:
            self._events.put_nowait(Ready(name))

    def _announce(
        self, news: AnnounceReady | AnnounceRestart | AnnounceFailure | AnnounceOverdue | AnnounceHung
    ) -> None:
        match news:
            case AnnounceReady():
                print(self._ready_line, flush=True)
            case AnnounceRestart(name, code, delay_s, failures):
                how = describe_exit(code)
                level = logging.ERROR if failures >= FAILURES_BEFORE_READY else logging.WARNING
                text = "%s ended %s (failures in a row: %d); starting it again in %.1f s"
                logger.log(level, text, name, how, failures, delay_s)
            case AnnounceFailure(name, message):
                reason = self._reasons.get(name)
                self._failure = message if reason is None else f"{message}: {reason}"
                logger.error("%s: ending all", message)
            case AnnounceHung(name):
                logger.warning("%s does nothing any more, says the coordinator: killing it", name)
            case AnnounceOverdue(name):
                logger.warning("%s is not gone by its deadline: killing it", name)
            case _:
                assert_never(news)
