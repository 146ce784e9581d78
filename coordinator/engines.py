"""The engine cores: who is there, under which index, with what load; and who was lost and may come back."""

from collections import deque
from collections.abc import Container, Iterator, Sequence

import msgspec

from coordinator.events import Identity
from coordinator.routing import EngineView
from protocol.codec import Frame
from protocol.identifiers import ClientIndex, EngineIndex, Incarnation
from protocol.messages import EngineHello, EngineState, Load, MemberProcess, RequestKey

MAX_ENGINES = 1024
"""Live at once; a Hello beyond is refused."""
MAX_LOST = 256
"""Lost engine cores that are remembered in case they come back; at the limit the oldest is forgotten."""
MAX_NAMES = 4 * MAX_ENGINES
"""Names that keep their index; at the limit the one of an engine core that is not there, met longest ago, goes."""


class UnseenRequest(msgspec.Struct, frozen=True, gc=False):
    """A request sent to an engine core that has not confirmed it with a report. Kept to be sent again."""

    key: RequestKey
    prefill_tokens: int
    """Prompt tokens that should have to be computed there."""
    frames: Sequence[Frame]


class EngineMember:
    """Owner of what is known of one live engine core."""

    def __init__(self, identity: Identity, index: EngineIndex, hello: EngineHello, was_given_up: bool) -> None:
        self.identity = identity
        self.was_given_up = was_given_up
        """Requests that it had before were told as lost, but it goes on under the same incarnation."""
        self.index = index
        self.hello = hello
        self.load = hello.load
        self._awaited: set[ClientIndex] = set()
        self._unseen: deque[UnseenRequest] = deque()
        self._unseen_tokens = 0
        self._num_confirmed = 0

    def greet(self, hello: EngineHello) -> list[UnseenRequest]:
        """It says Hello on a new connection: counting starts anew; returns what the old one may have lost."""
        self.hello = hello
        self.load = hello.load
        self._num_confirmed = 0
        unseen = list(self._unseen)
        self._unseen.clear()
        self._unseen_tokens = 0
        return unseen

    def sent(self, request: UnseenRequest) -> None:
        """A request goes to it: it counts as queued there at once."""
        self._unseen.append(request)
        self._unseen_tokens += request.prefill_tokens

    def reported(self, load: Load, adds_received: int) -> bool:
        """Takes over a report; returns whether it says something new. A report never overwrites what was sent after
        it: only requests that it has seen stop being counted on top of it."""
        if adds_received <= self._num_confirmed + len(self._unseen):  # otherwise it is from before our Welcome
            while self._num_confirmed < adds_received:
                self._unseen_tokens -= self._unseen.popleft().prefill_tokens
                self._num_confirmed += 1
        changed = load != self.load
        self.load = load
        return changed

    def await_clients(self, clients: set[ClientIndex]) -> None:
        """It works for API servers that have not said Hello to us yet: see ClusterState on settling."""
        self._awaited = clients

    def client_joined(self, client: ClientIndex) -> None:
        """An API server has said Hello."""
        self._awaited.discard(client)

    @property
    def awaits_clients(self) -> bool:
        """It must not be sent Clients yet, nor requests."""
        return bool(self._awaited)

    def view(self, requests: int, prefill_tokens: int, is_cut_off: bool) -> EngineView:
        """What routing looks at, by the requests that it has and what should have to be computed for them in all.

        `is_cut_off`: it does not reach the API server that asks.

        It reports prompts that wait as if nothing of them were stored, so of both sums the smaller one is true.
        """
        return EngineView(
            index=self.index,
            model=self.hello.model.name,
            available=not (self.load.draining or self._awaited or is_cut_off),
            queued_prefill_tokens=min(self.load.queued_prefill_tokens + self._unseen_tokens, prefill_tokens),
            requests=requests,
            kv_used_share=_share(self.load.kv_used_tokens, self.load.kv_capacity_tokens),
            waiting_requests=self.load.waiting + len(self._unseen),
        )

    def state(self, requests: int) -> EngineState:
        """What is published."""
        return EngineState(self.index, self.hello.name, self.hello.incarnation, self.hello.model, self.load, requests)

    def check_invariants(self) -> None:
        """Raises AssertionError when the sum of unseen tokens is wrong."""
        assert self._unseen_tokens == sum(each.prefill_tokens for each in self._unseen)


class EngineTable:
    """Owner of the engine cores."""

    def __init__(self) -> None:
        self._live: dict[Identity, EngineMember] = {}
        self._lost: dict[Identity, EngineHello] = {}
        self._silent: set[Identity] = set()
        """Those of the lost of which nothing was heard."""
        self._indexes: dict[str, EngineIndex] = {}

    def __iter__(self) -> Iterator[EngineMember]:
        return iter(self._live.values())

    def __len__(self) -> int:
        return len(self._live)

    def find(self, identity: Identity) -> EngineMember | None:
        """The live engine core with this identity."""
        return self._live.get(identity)

    def indexes(self) -> Container[EngineIndex]:
        """Of the engine cores that are there, or whose index is kept for them."""
        return self._indexes.values()

    def named(self, name: str) -> EngineMember | None:
        """The live engine core with this name."""
        return next((engine for engine in self._live.values() if engine.hello.name == name), None)

    def hellos(self) -> Iterator[EngineHello]:
        """Of the live ones and of the lost."""
        yield from (engine.hello for engine in self._live.values())
        yield from self._lost.values()

    def of_run(self, incarnation: Incarnation) -> EngineMember | None:
        """The live engine core whose run this is."""
        return next((engine for engine in self._live.values() if engine.hello.incarnation == incarnation), None)

    def announces(self, card_hash: str) -> bool:
        """Whether a live engine core has the model of this card."""
        return any(engine.hello.model.card_hash == card_hash for engine in self._live.values())

    def join(self, identity: Identity, hello: EngineHello) -> EngineMember:
        """A new live engine core or a lost one, under the index that its name has. The name must not be live."""
        assert self.named(hello.name) is None
        engine = EngineMember(identity, self._index_of(hello), hello, was_given_up=identity in self._lost)
        self.forget_lost(hello.name)
        self._live[identity] = engine
        return engine

    def leave(self, engine: EngineMember, keys: list[RequestKey], may_return: bool, is_silent: bool) -> None:
        """No longer live. When it may come back, it is remembered with the requests that it must give up, as the Hello
        that it would say."""
        del self._live[engine.identity]
        if may_return:
            requests = [(key, ClientIndex(-1), 0) for key in keys]
            self._lost[engine.identity] = msgspec.structs.replace(
                engine.hello, requests=requests, clients=[], engine_index=engine.index
            )
            if is_silent:
                self._silent.add(engine.identity)
            if len(self._lost) > MAX_LOST:
                del self._lost[next(iter(self._lost))]
                self._silent &= self._lost.keys()

    def lost(self, identity: Identity) -> EngineHello | None:
        """What the lost engine core with this identity would say."""
        return self._lost.get(identity)

    def forget_lost(self, name: str) -> None:
        """The lost engine cores of this name will not come back, or just did."""
        self._lost = {each: hello for each, hello in self._lost.items() if hello.name != name}
        self._silent &= self._lost.keys()

    def forget_exited(self, name: str, pid: int) -> EngineHello | None:
        """The lost engine core with this process will not come back; returns what it would say, if there is one."""
        lost = next((hello for hello in self._lost.values() if (hello.name, hello.pid) == (name, pid)), None)
        if lost is not None:
            self.forget_lost(name)
        return lost

    def silent(self) -> list[MemberProcess]:
        """The processes of the lost engine cores of which nothing was heard."""
        return [MemberProcess(self._lost[each].name, self._lost[each].pid) for each in sorted(self._silent)]

    def _index_of(self, hello: EngineHello) -> EngineIndex:
        index = self._indexes.pop(hello.name, None)
        if index is None:
            taken = set(self._indexes.values())
            wanted = hello.engine_index
            index = wanted if 0 <= wanted < MAX_NAMES and wanted not in taken else _lowest_free(taken)
        self._indexes[hello.name] = index
        if len(self._indexes) > MAX_NAMES:
            live = {engine.hello.name for engine in self._live.values()} | {hello.name}
            del self._indexes[next(name for name in self._indexes if name not in live)]
        return index

    def check_invariants(self) -> None:
        """Raises AssertionError when tables disagree or a limit is broken."""
        names = [engine.hello.name for engine in self._live.values()]
        assert len(names) == len(set(names)) <= MAX_ENGINES
        assert len(set(self._indexes.values())) == len(self._indexes) <= MAX_NAMES
        assert all(self._indexes[engine.hello.name] == engine.index for engine in self._live.values())
        assert all(identity == engine.identity for identity, engine in self._live.items())
        assert len(self._lost) <= MAX_LOST
        assert self._silent <= self._lost.keys()
        for engine in self._live.values():
            engine.check_invariants()
        assert not self._lost.keys() & self._live.keys()


def _share(used: int, capacity: int) -> float:
    return used / capacity if capacity > 0 else 0.0


def _lowest_free(taken: set[EngineIndex]) -> EngineIndex:
    return next(EngineIndex(index) for index in range(len(taken) + 1) if index not in taken)
