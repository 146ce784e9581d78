"""The API servers: who is there, under which index; and who was lost and may come back."""

from collections.abc import Iterator

import msgspec

from coordinator.events import Identity
from protocol.identifiers import ClientIndex
from protocol.messages import ClientAddress, ClientHello

MAX_CLIENTS = 1024
"""Live at once; a Hello beyond is refused."""
MAX_LOST = 256
"""Lost API servers that are remembered in case they come back; at the limit the oldest is forgotten."""


class ClientMember(msgspec.Struct, frozen=True):
    """One live API server."""

    identity: Identity
    index: ClientIndex
    hello: ClientHello
    former_index: ClientIndex = ClientIndex(-1)
    """What it had before it was last given up; it may not know yet that it has another."""


class ClientTable:
    """Owner of the API servers and of their indexes.

    An index stands for streams that were never cut: who was given up gets another one when it is heard again, and
    knows by that what it has lost. So an index is never given twice. The first one is drawn at random by each
    coordinator from a large range, so that what a restarted coordinator gives cannot be what an API server that it
    has yet to meet again goes by.
    """

    def __init__(self, first_index: ClientIndex) -> None:
        self._next_index = first_index
        self._live: dict[Identity, ClientMember] = {}
        self._lost: dict[Identity, ClientMember] = {}

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

    def hellos(self) -> Iterator[ClientHello]:
        """Of the live ones and of the lost."""
        yield from (client.hello for client in self._live.values())
        yield from (client.hello for client in self._lost.values())

    def at(self, index: ClientIndex) -> ClientMember | None:
        """The live API server with this index."""
        return next((client for client in self._live.values() if client.index == index), None)

    def has_index(self, index: ClientIndex) -> bool:
        """Whether a live API server has this index."""
        return any(client.index == index for client in self._live.values())

    def indexes(self) -> set[ClientIndex]:
        """Of the live API servers."""
        return {client.index for client in self._live.values()}

    def join(self, identity: Identity, hello: ClientHello, may_claim: bool) -> ClientMember:
        """A new live API server, or the new Hello of one. A live one keeps its index, a lost one gets a new one, any
        other gets the one that its Hello claims, if it `may_claim` it and it is free."""
        known = self._live.get(identity)
        lost = self._lost.get(identity)
        if known is not None:
            client = ClientMember(identity, known.index, hello, known.former_index)
        elif lost is not None:
            client = ClientMember(identity, self._new_index(), hello, lost.index)
        elif may_claim and hello.client_index >= 0 and not self._is_taken(hello.client_index):
            client = ClientMember(identity, hello.client_index, hello)
        else:
            client = ClientMember(identity, self._new_index(), hello)
        self._lost.pop(identity, None)
        self._live[identity] = client
        return client

    def leave(self, client: ClientMember, may_return: bool) -> None:
        """No longer live; remembered when it may only have been silent."""
        del self._live[client.identity]
        if may_return:
            self._lost[client.identity] = client
            if len(self._lost) > MAX_LOST:
                del self._lost[next(iter(self._lost))]

    def lost(self, identity: Identity) -> ClientMember | None:
        """The lost API server with this identity."""
        return self._lost.get(identity)

    def forget_lost(self, name: str) -> None:
        """The lost API servers of this name will not come back, or just did."""
        self._lost = {each: lost for each, lost in self._lost.items() if lost.hello.name != name}

    def addresses(self) -> list[ClientAddress]:
        """Where the outputs of each go."""
        return [_address(client) for client in self._live.values()]

    def _new_index(self) -> ClientIndex:
        while self._is_taken(self._next_index):
            self._next_index = ClientIndex(self._next_index + 1)
        index = self._next_index
        self._next_index = ClientIndex(index + 1)
        return index

    def _is_taken(self, index: ClientIndex) -> bool:
        return self.has_index(index) or any(lost.index == index for lost in self._lost.values())

    def check_invariants(self) -> None:
        """Raises AssertionError when two share a name or an index, or a limit is broken."""
        for values in (
            [client.hello.name for client in self._live.values()],
            [client.index for client in self._live.values()] + [lost.index for lost in self._lost.values()],
        ):
            assert len(values) == len(set(values))
        assert len(self._live) <= MAX_CLIENTS
        assert len(self._lost) <= MAX_LOST
        assert not self._live.keys() & self._lost.keys()
        assert all(identity == client.identity for identity, client in self._live.items())


def _address(client: ClientMember) -> ClientAddress:
    return ClientAddress(client.index, client.hello.output_address, client.hello.output_public_key)
