"""The API servers: who is there, under which index; and who was lost and may come back."""

from collections.abc import Iterator

import msgspec

from coordinator.events import Identity
from protocol.identifiers import ClientIndex
from protocol.messages import ClientAddress, ClientHello, Clients, EngineRun

MAX_CLIENTS = 1024
"""Live at once; a Hello beyond is refused."""
MAX_LOST = 256
"""Lost API servers that are remembered in case they come back; at the limit the oldest is forgotten."""


class ClientMember(msgspec.Struct, frozen=True):
    """One live API server."""

    identity: Identity
    index: ClientIndex
    hello: ClientHello


class LostClient(msgspec.Struct, frozen=True):
    """An API server given up that may still be alive, with the engine cores that have dropped its requests."""

    member: ClientMember
    engines: list[EngineRun]


class ClientTable:
    """Owner of the API servers and of their indexes.

    An index is never given twice. The first one is drawn at random by each coordinator from a large range, so that
    what a restarted coordinator gives cannot be what an API server that it has yet to meet again goes by.
    """

    def __init__(self, first_index: ClientIndex) -> None:
        self._next_index = first_index
        self._live: dict[Identity, ClientMember] = {}
        self._lost: dict[Identity, LostClient] = {}

    def __iter__(self) -> Iterator[ClientMember]:
        return iter(self._live.values())

    def __len__(self) -> int:
        return len(self._live)

    def find(self, identity: Identity) -> ClientMember | None:
        """The live API server with this identity."""
        return self._live.get(identity)

    def named(self, name: str) -> ClientMember | None:
        """The live API server with this name."""
        return next((client for client in self._live.values() if client.hello.name == name), None)

    def has_index(self, index: ClientIndex) -> bool:
        """Whether a live API server has this index."""
        return any(client.index == index for client in self._live.values())

    def indexes(self) -> set[ClientIndex]:
        """Of the live API servers."""
        return {client.index for client in self._live.values()}

    def join(self, identity: Identity, hello: ClientHello) -> ClientMember:
        """A new live API server, or the new Hello of one, live or lost: it keeps the index that it had."""
        lost = self._lost.pop(identity, None)
        known = self._live.get(identity) or (lost.member if lost is not None else None)
        client = ClientMember(identity, known.index if known is not None else self._index_for(hello), hello)
        self._live[identity] = client
        return client

    def leave(self, client: ClientMember, engines: list[EngineRun], may_return: bool) -> None:
        """No longer live; remembered with `engines` when it may only have been silent."""
        del self._live[client.identity]
        if may_return:
            self._lost[client.identity] = LostClient(client, engines)
            if len(self._lost) > MAX_LOST:
                del self._lost[next(iter(self._lost))]

    def lost(self, identity: Identity) -> LostClient | None:
        """The lost API server with this identity."""
        return self._lost.get(identity)

    def forget_lost(self, name: str) -> None:
        """The lost API servers of this name will not come back, or just did."""
        self._lost = {each: lost for each, lost in self._lost.items() if lost.member.hello.name != name}

    def addresses(self) -> Clients:
        """Where the outputs of each go."""
        return Clients([ClientAddress(client.index, client.hello.output_address) for client in self._live.values()])

    def _index_for(self, hello: ClientHello) -> ClientIndex:
        if hello.client_index >= 0 and not self._is_taken(hello.client_index):
            return hello.client_index
        while self._is_taken(self._next_index):
            self._next_index = ClientIndex(self._next_index + 1)
        index = self._next_index
        self._next_index = ClientIndex(index + 1)
        return index

    def _is_taken(self, index: ClientIndex) -> bool:
        return self.has_index(index) or any(lost.member.index == index for lost in self._lost.values())

    def check_invariants(self) -> None:
        """Raises AssertionError when two share a name or an index, or a limit is broken."""
        for values in (
            [client.hello.name for client in self._live.values()],
            [client.index for client in self._live.values()] + [lost.member.index for lost in self._lost.values()],
        ):
            assert len(values) == len(set(values))
        assert len(self._live) <= MAX_CLIENTS
        assert len(self._lost) <= MAX_LOST
        assert not self._live.keys() & self._lost.keys()
        assert all(identity == client.identity for identity, client in self._live.items())
