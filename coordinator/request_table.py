"""The request -> engine core table."""

from typing import TypeVar

import msgspec

from coordinator.events import Identity
from protocol.identifiers import ClientIndex, RequestId
from protocol.messages import RequestKey, RouteReason

Owner = TypeVar("Owner")


class Routed(msgspec.Struct, frozen=True, gc=False):
    """An unfinished request and where it is."""

    key: RequestKey
    client_index: ClientIndex
    engine: Identity
    model: str
    prefill_tokens: int
    """Prompt tokens that should have to be computed there."""
    expected_cached_tokens: int = 0
    reason: RouteReason | None = None
    """None for one that an earlier coordinator has routed."""


class RequestTable:
    """Owner of the unfinished requests. One attempt of a request at a time; found by id, engine core or client."""

    def __init__(self) -> None:
        self._by_id: dict[RequestId, Routed] = {}
        self._of_engine: dict[Identity, set[RequestId]] = {}
        self._of_client: dict[ClientIndex, set[RequestId]] = {}
        self._of_model: dict[str, int] = {}
        self._prefill_tokens: dict[Identity, int] = {}
        """By engine core, of its requests."""

    def __len__(self) -> int:
        return len(self._by_id)

    def find(self, request_id: RequestId) -> Routed | None:
        """The entry of a request."""
        return self._by_id.get(request_id)

    def add(self, routed: Routed) -> None:
        """A request has been given to an engine core. Its id must be free."""
        request_id = routed.key.request_id
        assert request_id not in self._by_id
        self._by_id[request_id] = routed
        self._of_engine.setdefault(routed.engine, set()).add(request_id)
        self._of_client.setdefault(routed.client_index, set()).add(request_id)
        self._of_model[routed.model] = self._of_model.get(routed.model, 0) + 1
        tokens = self._prefill_tokens.get(routed.engine, 0) + routed.prefill_tokens
        self._prefill_tokens[routed.engine] = tokens

    def remove(self, routed: Routed) -> None:
        """A request has ended, wherever it was."""
        request_id = routed.key.request_id
        del self._by_id[request_id]
        _discard(self._of_engine, routed.engine, request_id)
        _discard(self._of_client, routed.client_index, request_id)
        self._prefill_tokens[routed.engine] -= routed.prefill_tokens
        if routed.engine not in self._of_engine:
            del self._prefill_tokens[routed.engine]
        self._of_model[routed.model] -= 1
        if not self._of_model[routed.model]:
            del self._of_model[routed.model]

    def of_engine(self, engine: Identity) -> list[Routed]:
        """The requests of an engine core, ordered by id."""
        return [self._by_id[request_id] for request_id in sorted(self._of_engine.get(engine, ()))]

    def of_client(self, client_index: ClientIndex) -> list[Routed]:
        """The requests of an API server, ordered by id."""
        return [self._by_id[request_id] for request_id in sorted(self._of_client.get(client_index, ()))]

    def engine_count(self, engine: Identity) -> int:
        """Number of requests of an engine core."""
        return len(self._of_engine.get(engine, ()))

    def prefill_tokens(self, engine: Identity) -> int:
        """Prompt tokens that the requests of an engine core should have to be computed, some of them done already."""
        return self._prefill_tokens.get(engine, 0)

    def in_flight(self, model: str) -> int:
        """Number of requests for a model."""
        return self._of_model.get(model, 0)

    def clients(self) -> set[ClientIndex]:
        """The API servers that have requests."""
        return set(self._of_client)

    def engines(self) -> set[Identity]:
        """The engine cores that have requests."""
        return set(self._of_engine)

    def check_invariants(self) -> None:
        """Raises AssertionError when the indexes do not agree with the table."""
        rows = list(self._by_id.values())
        assert all(request_id == row.key.request_id for request_id, row in self._by_id.items())
        for index, pairs in (
            (self._of_engine, [(row.engine, row.key.request_id) for row in rows]),
            (self._of_client, [(row.client_index, row.key.request_id) for row in rows]),
        ):
            assert sorted((owner, each) for owner, ids in index.items() for each in ids) == sorted(pairs)
            assert all(index.values()), "an owner without requests is still listed"
        assert self._prefill_tokens.keys() == self._of_engine.keys()
        assert all(
            tokens == sum(row.prefill_tokens for row in rows if row.engine == engine)
            for engine, tokens in self._prefill_tokens.items()
        )
        assert sum(self._of_model.values()) == len(rows)
        assert all(count == sum(row.model == model for row in rows) for model, count in self._of_model.items())


def _discard(index: dict[Owner, set[RequestId]], owner: Owner, request_id: RequestId) -> None:
    index[owner].discard(request_id)
    if not index[owner]:
        del index[owner]
