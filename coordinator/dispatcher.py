"""Requests on their way through the coordinator: accepted or refused, aborted, finished, found again.

Every submission is answered once, with Accepted or Rejected. What was accepted stays in the table until its engine
core reports its end, its API server aborts it or is gone, or its engine core is lost, which all API servers are told.
"""

from collections.abc import Iterable, Sequence

import msgspec

from coordinator.admission import Admission
from coordinator.block_index import BlockIndex
from coordinator.clients import ClientMember
from coordinator.cut_offs import CutOffs
from coordinator.engines import EngineMember, EngineTable, UnseenRequest
from coordinator.events import Identity, Outbox
from coordinator.publisher import ClusterPublisher
from coordinator.request_table import RequestTable, Routed
from coordinator.router import Route, Router
from coordinator.routing import Refusal
from coordinator.settling import Settling
from coordinator.tenant_limits import TenantLimits
from coordinator.trial import Trial, is_suspect
from coordinator.waiting_room import Submission, WaitingRoom
from protocol.identifiers import ClientIndex
from protocol.messages import (
    Abort,
    Accepted,
    EngineHello,
    Load,
    Rejected,
    RejectReason,
    RequestEnded,
    RequestKey,
    TenantState,
)

MAX_EARLY_ABORTS = 16_384
"""Aborts kept, while settling, of requests that no engine core has told of yet; at the limit the oldest goes."""


class Dispatcher:
    """Owner of the request table, of admission, and of what waits for an engine core."""

    def __init__(
        self,
        engines: EngineTable,
        blocks: BlockIndex,
        cut_offs: CutOffs,
        settling: Settling,
        publisher: ClusterPublisher,
        outbox: Outbox,
        admission: Admission,
        tenants: TenantLimits,
    ) -> None:
        self._engines = engines
        self._blocks = blocks
        self._outbox = outbox
        self._publisher = publisher
        self._table = RequestTable()
        self._router = Router(engines, self._table, blocks, cut_offs)
        self._admission = admission
        self._tenants = tenants
        self._waiting = WaitingRoom()
        self._early_aborts: dict[RequestKey, None] = {}
        self._trial = Trial()
        self._settling = settling
        self.rejected_total = {reason.name.lower(): 0 for reason in RejectReason}

    # --- submissions ---

    def submit(self, submission: Submission, now_s: float) -> None:
        """An API server wants a request to run, for the first time or again because it had no answer."""
        request, client = submission.request, submission.client
        routed = self._table.find(request.request_id)
        if routed is None:
            self._submit_unrouted(submission, now_s)
        elif routed.client_index == client.index and routed.key == request.key:
            self._accept(client, routed)
        elif routed.client_index == client.index and routed.key.attempt < request.attempt:
            self._supersede(routed, submission, now_s)
        else:
            self._reject(submission, _duplicate(routed.key), now_s)

    def retry_waiting(self, now_s: float) -> None:
        """An engine core has become available, or the settling time is over."""
        for submission in self._waiting.take_all():
            self.submit(submission, now_s)  # it may be running by now: an engine core has told of it

    def _submit_unrouted(self, submission: Submission, now_s: float) -> None:
        waiting = self._waiting.find(submission.request.request_id)
        if waiting is None:
            self._place(submission, now_s)
        elif waiting.client.index != submission.client.index or waiting.request.attempt > submission.request.attempt:
            self._reject(submission, _duplicate(waiting.request.key), now_s)
        elif waiting.request.attempt < submission.request.attempt:
            self._waiting.remove(waiting)
            self._reject(waiting, _duplicate(submission.request.key), now_s)
            self._place(submission, now_s)
        else:  # by a newer connection: by that it wants to be answered
            self._waiting.remove(waiting)
            self._waiting.add(submission)

    def _supersede(self, old: Routed, submission: Submission, now_s: float) -> None:
        self._remove(old)
        engine = self._place(submission, now_s)
        if engine is None or engine.identity != old.engine:  # the same one sees for itself that the attempt is newer
            self._outbox.to_engine(old.engine, Abort([old.key]))

    def _place(self, submission: Submission, now_s: float) -> EngineMember | None:
        request = submission.request
        if is_suspect(request) and not self._trial.is_free:
            if not self._wait(submission):
                self._reject(
                    submission, Refusal(RejectReason.NO_ENGINE, "too many requests wait for their turn"), now_s
                )
            return None
        model = self._admission.view(request.model, self._table.in_flight(request.model), now_s)
        if request.attempt:  # it was let in before
            model = msgspec.structs.replace(model, max_requests=model.in_flight + 1)
        views = self._router.views(submission.client.index)
        route = self._admission.refusal(request, views, now_s) or self._router.choose(
            request, submission.block_keys, views, model
        )
        if not isinstance(route, Refusal):  # last, so that it is asked, and counts, only when all others have said yes
            route = self._tenants.refusal(request, now_s) or route
        if isinstance(route, Refusal):
            if not self._may_wait(submission, route):
                self._reject(submission, route, now_s)
            return None
        self._tenants.routed(request, now_s)
        self._router.chosen(route, request, submission.block_keys)
        self._follow(route, submission)
        return route.engine

    def _may_wait(self, submission: Submission, refusal: Refusal) -> bool:
        """While settling, the engine core that is missing may just not have said Hello yet; a request that has lost its
        engine core waits for the next one, as long as its API server does."""
        may_wait = (self._settling.is_active or submission.request.attempt > 0) and refusal.reason in (
            RejectReason.NO_ENGINE,
            RejectReason.UNKNOWN_MODEL,
            RejectReason.NO_SUCH_ENGINE,
        )
        return may_wait and self._wait(submission)

    def _wait(self, submission: Submission) -> bool:
        has_place = self._waiting.has_place_for(submission)
        if has_place:
            self._waiting.add(submission)
        return has_place

    def cleared(self, keys: Iterable[RequestKey]) -> None:
        """These requests have got new tokens: engine cores did not die of them."""
        for key in keys:
            self._trial.over(key)

    def let_suspect_run(self, now_s: float) -> None:
        """If no suspect runs, the next one has its turn."""
        if self._trial.is_free:
            suspect = next((each for each in self._waiting if is_suspect(each.request)), None)
            if suspect is not None:
                self._waiting.remove(suspect)
                self.submit(suspect, now_s)

    def _follow(self, route: Route, submission: Submission) -> None:
        request, engine, choice = submission.request, route.engine, route.choice
        routed = Routed(
            key=request.key,
            client_index=submission.client.index,
            engine=engine.identity,
            model=request.model,
            prefill_tokens=request.num_prompt_tokens - choice.cached_tokens,
            expected_cached_tokens=choice.cached_tokens,
            reason=choice.reason,
        )
        self._add(routed)
        self._trial.began(request)
        self._send(engine, UnseenRequest(request.key, routed.prefill_tokens, submission.frames))
        self._accept(submission.client, routed)

    def _send(self, engine: EngineMember, request: UnseenRequest) -> None:
        engine.sent(request)
        self._outbox.forward_to_engine(engine.identity, request.frames)

    def _accept(self, client: ClientMember, routed: Routed) -> None:
        engine = self._engines.find(routed.engine)
        assert engine is not None, "the table holds a request of an engine core that is gone"
        accepted = Accepted(
            routed.key,
            engine.index,
            engine.hello.incarnation,
            routed.expected_cached_tokens,
            routed.reason,
            client.hello.greeting,
        )
        self._outbox.to_client(client.identity, accepted)

    def _reject(self, submission: Submission, refusal: Refusal, now_s: float) -> None:
        self.rejected_total[refusal.reason.name.lower()] += 1
        self._publisher.counts_changed(now_s)
        why = refusal.reason, refusal.message, refusal.retry_after_s, refusal.allowance
        rejected = Rejected(submission.request.key, *why, greeting=submission.client.hello.greeting)
        self._outbox.to_client(submission.client.identity, rejected)

    # --- ends ---

    def abort(self, client: ClientMember, keys: Iterable[RequestKey]) -> None:
        """An API server no longer wants these requests."""
        of_engine: dict[Identity, list[RequestKey]] = {}
        for key in keys:
            routed = self._table.find(key.request_id)
            if routed is not None and routed.key == key and routed.client_index == client.index:
                self._remove(routed)
                of_engine.setdefault(routed.engine, []).append(key)
            else:
                self._abort_unrouted(client, key)
        for engine, engine_keys in of_engine.items():
            self._outbox.to_engine(engine, Abort(engine_keys))

    def _abort_unrouted(self, client: ClientMember, key: RequestKey) -> None:
        waiting = self._waiting.find(key.request_id)
        if waiting is not None and waiting.request.key == key and waiting.client.index == client.index:
            self._waiting.remove(waiting)
        elif self._settling.is_active:
            self._early_aborts[key] = None
            if len(self._early_aborts) > MAX_EARLY_ABORTS:
                del self._early_aborts[next(iter(self._early_aborts))]

    def finished(self, engine: EngineMember, keys: Iterable[RequestKey], now_s: float) -> None:
        """An engine core reports requests that have ended there; those it was told to drop are skipped."""
        for key in keys:
            routed = self._table.find(key.request_id)
            if routed is not None and routed.key == key and routed.engine == engine.identity:
                self._remove(routed)
                self._admission.finished(routed.model, now_s)

    def ended(self, client: ClientMember, ended: RequestEnded, now_s: float) -> None:
        """An API server says that a tenant's request is over for its caller."""
        self._tenants.ended(client.index, ended.request_id, ended.num_output_tokens, now_s)
        self._publisher.counts_changed(now_s)

    def computed(self, engine: EngineMember, load: Load, now_s: float) -> None:
        """An engine core reports its load, which has not been taken over yet."""
        done = _prefilled(load) - _prefilled(engine.load)
        self._admission.computed(engine.hello.model.name, done, now_s)

    def engine_gone(self, engine: EngineMember) -> list[RequestKey]:
        """Forgets the requests of a lost engine core; returns their keys."""
        lost = self._table.of_engine(engine.identity)
        for routed in lost:
            self._table.remove(routed)
            self._trial.over(routed.key)
            self._tenants.unrouted(routed.key.request_id)
        return [routed.key for routed in lost]

    def cut_off(self, engine: EngineMember, client: ClientMember) -> None:
        """Takes from an engine core what it has of an API server that it cannot reach."""
        lost = [routed for routed in self._table.of_client(client.index) if routed.engine == engine.identity]
        for routed in lost:
            self._remove(routed)
        self._abort_on(engine, [routed.key for routed in lost])  # some may not have arrived there yet

    def client_gone(self, client: ClientMember) -> None:
        """Forgets the requests of a lost API server."""
        self._waiting.remove_client(client.identity)
        self._tenants.client_gone(client.index)
        self._forget_client(client.index)

    def _forget_client(self, client_index: ClientIndex) -> None:
        for routed in self._table.of_client(client_index):
            self._remove(routed)

    # --- requests that an engine core lists in its Hello ---

    def model_served(self, model: str) -> None:
        """An engine core with this model has joined."""
        self._admission.served(model)

    def adopt(self, engine: EngineMember) -> None:
        """Takes over, while settling, the requests of an engine core that an earlier coordinator knew."""
        unwanted = []
        for key, client_index, num_prompt_tokens in engine.hello.requests:
            if key in self._early_aborts or not self._adopt_one(engine, key, client_index, num_prompt_tokens):
                unwanted.append(key)
        self._abort_on(engine, unwanted)

    def _adopt_one(
        self, engine: EngineMember, key: RequestKey, client_index: ClientIndex, num_prompt_tokens: int
    ) -> bool:
        other = self._table.find(key.request_id)
        if other is not None:
            if other.key.attempt >= key.attempt:
                return False
            self._remove(other)
            self._outbox.to_engine(other.engine, Abort([other.key]))
        self._add(Routed(key, client_index, engine.identity, engine.hello.model.name, num_prompt_tokens))
        return True

    def lost_requests(self, client: ClientMember, engine: EngineMember) -> list[RequestKey]:
        """What the API server believes to be accepted there, by an earlier coordinator's word, and is not."""
        there = {routed.key for routed in self._table.of_client(client.index) if routed.engine == engine.identity}
        return [
            key
            for key, incarnation in client.hello.requests
            if incarnation == engine.hello.incarnation and key not in there
        ]

    def reconcile(self, engine: EngineMember, hello: EngineHello, unseen: Sequence[UnseenRequest]) -> None:
        """Brings the table in line with an engine core that says Hello again over a new connection.

        What it lists and the table does not have was aborted meanwhile. What the table has and it does not list never
        arrived if it is unseen, and is sent again; otherwise it has ended, and the report was lost.
        """
        listed = {key for key, _, _ in hello.requests}
        ours = {routed.key: routed for routed in self._table.of_engine(engine.identity)}
        self._abort_on(engine, [key for key, _, _ in hello.requests if key not in ours])
        missing = ours.keys() - listed
        for request in unseen:
            if request.key in missing:
                missing.discard(request.key)
                self._send(engine, request)
        for key in missing:
            self._remove(ours[key])

    def _abort_on(self, engine: EngineMember, keys: list[RequestKey]) -> None:
        if keys:
            self._outbox.to_engine(engine.identity, Abort(keys))

    def settled(self, clients: set[ClientIndex], now_s: float) -> None:
        """The settling time is over: who has not come is gone, what has no place is refused."""
        self._early_aborts.clear()
        for client_index in self._table.clients() - clients:
            self._forget_client(client_index)
        self.retry_waiting(now_s)

    # --- the table ---

    @property
    def num_requests(self) -> int:
        """Unfinished requests, those that wait included."""
        return len(self._table) + len(self._waiting)

    def engine_count(self, engine: EngineMember) -> int:
        """Number of unfinished requests of an engine core."""
        return self._table.engine_count(engine.identity)

    def tenant_states(self) -> list[TenantState]:
        """Of the tenants that have limits."""
        return self._tenants.states()

    def _add(self, routed: Routed) -> None:
        self._table.add(routed)
        self._publisher.engine_changed(routed.engine)

    def _remove(self, routed: Routed) -> None:
        self._table.remove(routed)
        self._blocks.ended(routed.engine, routed.key)
        self._trial.over(routed.key)
        self._tenants.unrouted(routed.key.request_id)
        self._publisher.engine_changed(routed.engine)

    def check_invariants(self, clients: set[ClientIndex]) -> None:
        """Raises AssertionError when a request is left of a member that is gone, or a table is inconsistent."""
        self._table.check_invariants()
        self._waiting.check_invariants()
        self._admission.check_invariants()
        self._tenants.check_invariants()
        assert self._table.engines() <= {engine.identity for engine in self._engines}
        assert self._settling.is_active or self._table.clients() <= clients
        assert self._settling.is_active or not self._early_aborts
        assert self._settling.is_active or all(each.request.attempt for each in self._waiting)
        assert len(self._early_aborts) <= MAX_EARLY_ABORTS


def _prefilled(load: Load) -> int:
    """Prompt tokens that have left the queue since the engine core's start."""
    return load.prompt_tokens_total + load.prefix_hits_tokens_total


def _duplicate(known: RequestKey) -> Refusal:
    return Refusal(
        RejectReason.DUPLICATE, f"request {known.request_id} is known, with attempt {known.attempt}, and not ended"
    )
