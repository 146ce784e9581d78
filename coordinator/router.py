"""Routes one request after the other: gathers what the policy (coordinator.routing) must know, and notes its choice."""

from collections.abc import Sequence

import msgspec

from coordinator.block_index import BlockIndex
from coordinator.cut_offs import CutOffs
from coordinator.engines import EngineMember, EngineTable
from coordinator.request_table import RequestTable
from coordinator.routing import Candidate, Choice, EngineView, ModelView, Refusal, candidates, choose
from protocol.identifiers import ClientIndex, EngineIndex
from protocol.messages import EngineCoreRequest
from protocol.prefix_hash import BLOCK_TOKENS, BlockKey


class Route(msgspec.Struct, frozen=True):
    """Where a request goes, and why."""

    engine: EngineMember
    choice: Choice


class Router:
    """Owner of whose turn it is."""

    def __init__(self, engines: EngineTable, table: RequestTable, blocks: BlockIndex, cut_offs: CutOffs) -> None:
        self._engines = engines
        self._table = table
        self._blocks = blocks
        self._cut_offs = cut_offs
        self._last_chosen = EngineIndex(-1)

    def views(self, client: ClientIndex) -> list[EngineView]:
        """All engine cores, as the policy looks at them for a request of this API server."""
        return [self._view(engine, client) for engine in self._engines]

    def choose(
        self, request: EngineCoreRequest, keys: Sequence[BlockKey], views: Sequence[EngineView], model: ModelView
    ) -> Route | Refusal:
        """The engine core for a request whose first blocks have these keys; nothing is changed."""
        able = candidates(request, views, model, self._engines.indexes())
        if isinstance(able, Refusal):
            return able
        members = {engine.index: engine for engine in self._engines}
        among = [self._candidate(view, members[view.index], request, keys) for view in able]
        choice = choose(request, among, self._last_chosen)
        return Route(members[choice.index], choice)

    def chosen(self, route: Route, request: EngineCoreRequest, keys: Sequence[BlockKey]) -> None:
        """The request goes there: it is the next one's turn, and its blocks are expected there."""
        self._last_chosen = route.choice.index
        self._blocks.expect(route.engine.identity, request.key, keys)

    def _view(self, engine: EngineMember, client: ClientIndex) -> EngineView:
        identity = engine.identity
        is_cut_off = (identity, client) in self._cut_offs
        return engine.view(self._table.engine_count(identity), self._table.prefill_tokens(identity), is_cut_off)

    def _candidate(
        self, view: EngineView, engine: EngineMember, request: EngineCoreRequest, keys: Sequence[BlockKey]
    ) -> Candidate:
        match = self._blocks.match(engine.identity, keys)
        most = (request.num_prompt_tokens - 1) // BLOCK_TOKENS  # the last token is always computed
        return Candidate(view, BLOCK_TOKENS * min(match.blocks, most), match.requests)
