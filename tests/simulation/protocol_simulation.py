"""Histories of a whole cluster in memory: everything that can die does, and the promises are checked.

A history is a seed: requests come, and for some seconds processes are killed, frozen and drained, connections break,
outputs are lost or come twice, in whatever order the seed says. Then it is left alone, and in the end each caller has
all its tokens, in order, once, or an error that a rule names, and nobody works for nobody.

    python tests/simulation/protocol_simulation.py --histories 100000 --first 0
"""

import argparse
import time
from collections import Counter
from collections.abc import Callable

from simulated_members import (
    ADMISSION_TIMEOUT_S,
    RESUME_TIMEOUT_S,
    Caller,
    ClientProcess,
    Coordinators,
    EngineProcess,
)
from simulated_network import Channel, World

from api_server.client_events import Abandon, AdmissionTimedOut
from coordinator.events import Subscribed
from engine_core.watched_push import UNREACHABLE_AFTER_S
from protocol.errors import AddressError
from protocol.identifiers import RequestId
from protocol.messages import ProcessExited

CHAOS_S = 6.0
QUIET_S = ADMISSION_TIMEOUT_S + RESUME_TIMEOUT_S + 10.0
SETTLED_AFTER_S = 9.0
"""A process that is frozen last, a coordinator that settles after it, a heartbeat or two."""
ENGINES = 2
CLIENTS = 2
LOST_SHARE, TWICE_SHARE = 0.01, 0.01
"""Of the messages with outputs: lost alone, between others that arrive, or delivered twice."""


class Parted:
    """What waits for a connection that is not there."""

    def __init__(self, since_s: float) -> None:
        self.since_s = since_s
        self.held: list[list[bytes]] = []


class History:
    """One run, from a seed."""

    def __init__(self, seed: int) -> None:
        self.world = World(seed)
        self.random = self.world.random
        self.coordinators = Coordinators(self.world)
        self._processes = 0
        self._requests = 0
        self.callers: list[Caller] = []
        """Of API servers that are still there."""
        self._outputs: dict[tuple[int, str], Channel] = {}
        self._parted: dict[tuple[int, str], Parted] = {}
        self.clients = {f"api-{number}": self._new_client(f"api-{number}") for number in range(CLIENTS)}
        self.engines = {f"engine-{number}": self._new_engine(f"engine-{number}") for number in range(ENGINES)}
        self._disturbances = 0
        self.is_quiet = False

    def run(self) -> Counter[str]:
        """Returns how the callers' requests ended. Raises AssertionError when a promise is broken."""
        start_s = self.world.now_s
        for _ in range(self.random.randint(2, 10)):
            self.world.at(start_s + self.random.uniform(0, CHAOS_S), self._submit)
        for _ in range(self.random.randint(1, 7)):
            self.world.at(start_s + self.random.uniform(0, CHAOS_S), self._strike)
        self.world.run(start_s + CHAOS_S)
        self.is_quiet = True
        while any(caller.end is None for caller in self.callers) and self.world.now_s < start_s + CHAOS_S + QUIET_S:
            self.world.run(self.world.now_s + 1.0)
        self._check_ends()
        self.world.run(self.world.now_s + SETTLED_AFTER_S)
        self._check_nothing_is_left()
        return Counter(str(caller.end) for caller in self.callers)

    # --- what happens -----------------------------------------------------------------------------------------

    def _submit(self) -> None:
        client = self.random.choice(list(self.clients.values()))
        self._requests += 1
        request_id = RequestId(str(self._requests))
        self.callers.append(client.submit(request_id, self.random.choice((1, 3, 10, 40))))
        self.world.after(ADMISSION_TIMEOUT_S, lambda: client.handle(lambda: client.tell(AdmissionTimedOut(request_id))))
        if self.random.random() < 0.1:
            self.world.after(
                self.random.uniform(0, 2), lambda: client.handle(lambda: client.tell(Abandon([request_id])))
            )

    def _strike(self) -> None:
        strikes: list[Callable[[], None]] = [
            self._kill_coordinator,
            self._kill_coordinator,
            self._kill_engine,
            self._kill_engine,
            self._kill_client,
            self._freeze,
            self._cut,
            self._drain,
            self._lose_outputs,
            self._part,
        ]
        self._disturbances += 1
        self.random.choice(strikes)()

    def _kill_coordinator(self) -> None:
        self.coordinators.kill()
        self.world.after(self.random.uniform(0.01, 1.0), self._restart_coordinator)

    def _restart_coordinator(self) -> None:
        if self.coordinators.present is None:
            self.coordinators.start()

    def _kill_engine(self) -> None:
        self._end_engine(self.random.choice(list(self.engines.values())))

    def _end_engine(self, engine: EngineProcess) -> None:
        if engine.is_alive:
            self._die(engine)
            self.world.after(self.random.uniform(0.2, 2.0), lambda: self._restart_engine(engine.name))

    def _drain(self) -> None:
        name = self.random.choice(list(self.engines))
        engine = self.engines[name]
        if engine.is_alive and not engine.is_frozen:
            engine.drain()
            self._die(engine)
            self.world.after(self.random.uniform(0.2, 2.0), lambda: self._restart_engine(name))

    def _restart_engine(self, name: str) -> None:
        if not self.engines[name].is_alive:
            self.engines[name] = self._new_engine(name)

    def _kill_client(self) -> None:
        self._end_client(self.random.choice(list(self.clients.values())))

    def _end_client(self, client: ClientProcess) -> None:
        self.callers = [caller for caller in self.callers if caller.request_id not in client.callers]
        self._die(client)
        for (_, address), channel in self._outputs.items():
            if address == client.address:
                channel.cut()
        self.clients[client.name] = self._new_client(client.name)

    def _die(self, process: EngineProcess | ClientProcess) -> None:
        process.is_alive = False
        process.connection.cut()
        for (pid, _), channel in self._outputs.items():
            if pid == process.pid:
                channel.cut()
        if self.random.random() < 0.8:  # otherwise its supervisor is gone too
            exited = ProcessExited(process.name, process.pid)
            self.world.after(0.05, lambda: self.coordinators.tell_exited(exited))

    def _freeze(self) -> None:
        processes = [*self.engines.values(), *self.clients.values(), self.coordinators.present]
        process = self.random.choice(processes)
        if process is not None and process.is_alive and not process.is_frozen:
            process.is_frozen = True
            self.world.after(self.random.choice((0.5, 2.0, 5.0)), process.thaw)

    def _cut(self) -> None:
        self.random.choice([*self.engines.values(), *self.clients.values()]).connection.cut()

    def _lose_outputs(self) -> None:
        """The connections for outputs break, all of them."""
        for channel in self._outputs.values():
            channel.cut()

    def _part(self) -> None:
        """The way between an engine core and an API server is cut; both still reach the coordinator."""
        engine, client = (self.random.choice(list(each.values())) for each in (self.engines, self.clients))
        ends = engine.pid, client.address
        if ends not in self._parted:
            if ends in self._outputs:
                self._outputs[ends].cut()
            self._parted[ends] = Parted(self.world.now_s)
            self.world.after(self.random.choice((1.0, 4.0, 12.0)), lambda: self._mend(*ends))

    def _mend(self, pid: int, address: str) -> None:
        for frames in self._parted.pop((pid, address)).held:
            self._push(pid, address, frames)

    # --- processes --------------------------------------------------------------------------------------------

    def _next_pid(self) -> int:
        self._processes += 1
        return self._processes

    def _new_client(self, name: str) -> ClientProcess:
        return ClientProcess(self.world, self.coordinators, name, self._next_pid())

    def _new_engine(self, name: str) -> EngineProcess:
        pid = self._next_pid()
        return EngineProcess(
            self.world, self.coordinators, name, pid, lambda address, frames: self._push(pid, address, frames)
        )

    def _push(self, pid: int, address: str, frames: list[bytes]) -> None:
        """As engine_core.watched_push does."""
        parted = self._parted.get((pid, address))
        if parted is not None:
            if self.world.now_s - parted.since_s < UNREACHABLE_AFTER_S:
                parted.held.append(frames)
                return
            self._parted[pid, address] = Parted(self.world.now_s)  # another socket takes its place
            raise AddressError("parted")
        if (pid, address) not in self._outputs:
            name = address.removeprefix("ipc:///")
            self._outputs[pid, address] = Channel(self.world, lambda each: self.clients[name].take_outputs(each))
        channel = self._outputs[pid, address]
        fate = 1.0 if self.is_quiet else self.random.random()
        if fate < LOST_SHARE:
            self._disturbances += 1
            return
        channel.send(frames)
        if fate > 1.0 - TWICE_SHARE and not self.is_quiet:
            channel.send(frames)

    # --- promises ---------------------------------------------------------------------------------------------

    def _check_ends(self) -> None:
        for caller in self.callers:
            assert caller.num_resumes <= self._disturbances, "resumed for no reason"
            assert caller.end is not None, f"request {caller.request_id} hangs at token {caller.num_tokens}"
            if caller.end == "whole":
                assert caller.num_tokens == caller.max_tokens
            else:
                assert caller.end in ("abandoned", "refused: NO_ENGINE", "refused: UNKNOWN_MODEL"), caller.end

    def _check_nothing_is_left(self) -> None:
        for engine in self.engines.values():
            assert not engine.requests, f"{engine.name} works for nobody: {list(engine.requests)}"
        for client in self.clients.values():
            assert client.core.num_generations == 0
        coordinator = self.coordinators.present
        assert coordinator is not None
        coordinator.state.handle(Subscribed(), self.world.now_s)
        assert coordinator.state.num_requests == 0, "the coordinator still counts requests"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--histories", type=int, default=1_000)
    parser.add_argument("--first", type=int, default=0, help="first seed")
    arguments = parser.parse_args()
    ends: Counter[str] = Counter()
    started_s = time.monotonic()
    for seed in range(arguments.first, arguments.first + arguments.histories):
        try:
            ends += History(seed).run()
        except AssertionError as error:
            raise AssertionError(f"history {seed}: {error}") from error
    seconds = time.monotonic() - started_s
    print(f"{arguments.histories} histories in {seconds:.1f} s; requests: {dict(ends.most_common())}")


if __name__ == "__main__":
    main()
