"""The API server's way to the cluster: hands events to the client core and does what it says."""

import asyncio
import logging
import math
from collections.abc import Callable, Sequence
from typing import assert_never

import msgspec

from api_server.card_store import CardStore
from api_server.client_core import ClientCore
from api_server.client_events import (
    Abandon,
    AdmissionTimedOut,
    Admit,
    ClientEvent,
    Command,
    DeadlinePassed,
    Deliver,
    Fail,
    FailAll,
    Forget,
    Leave,
    LinkDown,
    NotSent,
    Placed,
    Refuse,
    Resumed,
    SecondPassed,
    Send,
    Submit,
)
from api_server.cluster_view import ClusterView
from api_server.collector import TokenCollector
from api_server.generation_backend import AbortCause, Collector, GenerationFailed, Rejected
from api_server.generation_metrics import GenerationObserver
from api_server.heap import return_free_memory
from api_server.knowledge import Knowledge
from api_server.links import Incoming, Links
from api_server.metrics import Metrics
from api_server.parsers.names import AUTO, ParserNames
from api_server.placement import Placement
from api_server.prompt_packing import PromptPacker
from api_server.served_model import ServedModel
from protocol.card import unpack_card
from protocol.codec import Frame
from protocol.errors import ProtocolError
from protocol.grammar import GrammarSpec
from protocol.identifiers import RequestId, new_request_id
from protocol.malformed import MalformedLog
from protocol.messages import (
    Card,
    CardUnknown,
    ClientHello,
    ClientWelcome,
    ClusterSnapshot,
    EngineCoreRequest,
    EngineUpdate,
    FinishReason,
    GetCard,
    RequestEnded,
    wall_clock_s,
)
from protocol.sampling import SamplingParams

logger = logging.getLogger("shoal.api_server")


class ClusterRefusedUs(Exception):
    """The coordinator does not accept this process; trying again as it is would not help."""


STALLED_AFTER_S = 5.0
"""Without what is to be done each second: the event loop answers probes, but its timers or tasks do not run."""
DEADLINE_GRACE_S = 1.0
"""After its deadline a generation is ended here if its engine core has not done so: the step under way may have to
end first, and its host's clock may be behind ours."""


class Patience(msgspec.Struct, frozen=True):
    """For how long a request waits for the cluster, in seconds."""

    admission_timeout_s: float
    """For an answer, before it runs."""
    resume_timeout_s: float
    """For another engine core, when it has lost its own."""


class _Generation:
    """What belongs to a generation on this side of the client core."""

    def __init__(self, request_id: RequestId, observer: GenerationObserver, tenant: str) -> None:
        self.collector = TokenCollector(request_id)
        self.observer = observer
        self.tenant = tenant
        self.deadline: asyncio.TimerHandle | None = None
        self.num_tokens = 0
        """Delivered so far."""
        self.admission: asyncio.Future[Rejected | None] = asyncio.get_running_loop().create_future()
        """Done when the cluster has answered, in whichever way."""
        self.abort_cause = AbortCause.DISCONNECT


def _build_model(card_hash: str, packed: Frame, parsers: ParserNames) -> ServedModel:
    model = ServedModel(unpack_card(packed, card_hash), card_hash, parsers)
    return_free_memory()
    return model


class EngineClient:
    """Implements `generation_backend.GenerationBackend`. Runs on one event loop; owns all that it is made of."""

    def __init__(
        self,
        links: Links,
        hello: ClientHello,
        patience: Patience,
        metrics: Metrics,
        clock: Callable[[], float],
        parsers: ParserNames = AUTO,
    ) -> None:
        """`clock` only goes forward, in seconds. `parsers` are wanted for all models."""
        self._links = links
        self._core = ClientCore(hello, patience.resume_timeout_s)
        self._admission_timeout_s = patience.admission_timeout_s
        self._metrics = metrics
        self._parsers = parsers
        self.has_model = asyncio.Event()
        """Set once a model could be served."""
        self._clock = clock
        self._malformed = MalformedLog(clock)
        self.view = ClusterView()
        self._cards = CardStore()
        self._knowledge = Knowledge(patience.admission_timeout_s)
        self._packer = PromptPacker()
        self._was_welcomed = False
        self._second_passed_s = clock()
        self._generations: dict[RequestId, _Generation] = {}
        self._draining = False
        self._taking = True
        self._builds: asyncio.TaskGroup | None = None

    # --- for the routes ---------------------------------------------------------------------------------------

    @property
    def progressing(self) -> bool:
        """See GenerationBackend."""
        return self._clock() < self._second_passed_s + STALLED_AFTER_S

    @property
    def draining(self) -> bool:
        """See GenerationBackend."""
        return self._draining

    @property
    def taking(self) -> bool:
        """See GenerationBackend."""
        return self._taking

    @property
    def ready(self) -> bool:
        """See GenerationBackend."""
        return not self._draining and self.is_connected and self._cards.has_any(self.view.serving_card_hashes())

    @property
    def is_connected(self) -> bool:
        """Whether a coordinator has welcomed us, is there and answers."""
        return self._core.is_cluster_answering(self._clock())

    async def model(self, name: str | None) -> ServedModel:
        """See GenerationBackend."""
        await self._knowledge.until(lambda: self._knows_models or self._cards.has_named(name))
        return self._cards.model(name)

    async def models(self) -> list[ServedModel]:
        """See GenerationBackend."""
        await self._knowledge.until(lambda: self._knows_models)
        return self._cards.models()

    async def submit(
        self,
        model: ServedModel,
        prompt_ids: Sequence[int],
        sampling: SamplingParams,
        priority: int,
        cache_salt: str,
        request_prefix: str,
        placement: Placement,
        deadline_s: float = 0.0,
        tenant: str = "",
        grammar: GrammarSpec | None = None,
    ) -> Collector:
        """See GenerationBackend."""
        request_id = new_request_id(request_prefix)
        observer = self._metrics.generation_began(model.name, len(prompt_ids), self._clock())
        generation = self._generations[request_id] = _Generation(request_id, observer, tenant)
        prompt, now_s = self._packer.pack(prompt_ids), wall_clock_s()
        where = deadline_s, tenant, placement
        submit = Submit(request_id, model.name, prompt, sampling, now_s, priority, cache_salt, *where, grammar)
        self._handle(submit)
        left_s = deadline_s - now_s if deadline_s else math.inf
        try:
            await asyncio.wait((generation.admission,), timeout=min(self._admission_timeout_s, max(left_s, 0.0)))
        except asyncio.CancelledError:
            self.abort([generation.collector], AbortCause.DISCONNECT)
            raise
        if not generation.admission.done():
            is_due = left_s <= self._admission_timeout_s
            self._handle(DeadlinePassed(request_id) if is_due else AdmissionTimedOut(request_id))
        elif deadline_s and request_id in self._generations:
            wait_s = max(deadline_s - wall_clock_s(), 0.0) + DEADLINE_GRACE_S
            timer = asyncio.get_running_loop().call_later(wait_s, self._handle, DeadlinePassed(request_id))
            generation.deadline = timer
        rejected = generation.admission.result()
        if rejected is not None:
            raise rejected
        return generation.collector

    def abort(self, collectors: Sequence[Collector], cause: AbortCause) -> None:
        """See GenerationBackend."""
        request_ids = []
        for collector in collectors:
            assert isinstance(collector, TokenCollector)
            generation = self._generations.get(collector.request_id)
            if generation is not None:
                generation.abort_cause = cause
                request_ids.append(collector.request_id)
        if request_ids:
            self._handle(Abandon(request_ids))

    # --- for the process --------------------------------------------------------------------------------------

    async def run(self) -> None:
        """Receives until it is cancelled. Raises (in a group) ClusterRefusedUs, or what a fault of ours raised."""
        async with asyncio.TaskGroup() as self._builds:
            await self._links.receive(self._take, self._drop)

    def second_passed(self) -> None:
        """To be called once a second: heartbeat, cards that are due, a snapshot that did not come."""
        self._second_passed_s = self._clock()
        self._handle(SecondPassed())
        self._look_after_cards()
        if self.view.wants_snapshot:
            self._links.subscribe_anew()

    def start_draining(self) -> None:
        """No longer ready."""
        self._draining = True
        self._knowledge.changed()

    def stop_taking(self) -> None:
        """No new request is answered from now on."""
        self._taking = False

    def fail_all(self, message: str) -> None:
        """Ends every generation with this error."""
        self._handle(FailAll(message))

    # --- what comes in ----------------------------------------------------------------------------------------

    def _take(self, message: Incoming, buffers: Sequence[Frame]) -> None:
        match message:
            case ClusterSnapshot():
                self.view.take_snapshot(message)
                self._look_after_cards()
            case EngineUpdate():
                self._take_update(message)
            case Card(card_hash):
                self._take_card(card_hash, buffers)
            case CardUnknown(card_hash):
                self._cards.unknown(card_hash, self._clock())
            case ClientWelcome():
                self._was_welcomed = True
                self._handle(message)
                self._cards.coordinator_changed(self._clock())
                self._look_after_cards()
                logger.info("connected to coordinator %s as client %d", message.incarnation, message.client_index)
            case LinkDown():
                self._handle(message)
                logger.warning("connection to the coordinator lost")
            case _:
                self._handle(message)

    def _take_update(self, update: EngineUpdate) -> None:
        self.view.take_update(update)
        if self.view.wants_snapshot:
            self._links.subscribe_anew()

    def _drop(self, error: ProtocolError) -> None:
        self._malformed.drop(error)
        self._metrics.count_malformed()

    # --- model cards ------------------------------------------------------------------------------------------

    @property
    def _knows_models(self) -> bool:
        """Whether no more is to be waited for. What was known stays so while the coordinator is away."""
        heard = self._was_welcomed and not self.view.wants_snapshot and not self.view.is_settling
        return self._draining or (heard and self._cards.are_settled(self.view.card_hashes()))

    def _look_after_cards(self) -> None:
        now_s = self._clock()
        self._cards.needed(self.view.card_hashes(), now_s)
        if self._core.is_welcomed:
            for card_hash in self._cards.to_ask_for(now_s):
                self._links.send(GetCard(card_hash))  # one that cannot be sent is asked for again
        self._knowledge.changed()

    def _take_card(self, card_hash: str, buffers: Sequence[Frame]) -> None:
        if len(buffers) != 1:
            self._drop(ProtocolError(f"a card with {len(buffers)} buffers instead of 1"))
        elif self._cards.begin(card_hash):
            assert self._builds is not None
            self._builds.create_task(self._build(card_hash, buffers[0]), name="card")

    async def _build(self, card_hash: str, packed: Frame) -> None:
        try:
            model = await asyncio.to_thread(_build_model, card_hash, packed, self._parsers)
        except ProtocolError as error:
            self._drop(error)
            self._cards.fail(card_hash, self._clock())
        else:
            self._cards.finish(card_hash, model)
            logger.info("model %s can be served (card %.12s)", model.name, card_hash)
            logger.info("model %s: tool call parser %s, reasoning parser %s", model.name, *model.parsers)
            self.has_model.set()
        self._knowledge.changed()

    # --- the client core --------------------------------------------------------------------------------------

    def _handle(self, event: ClientEvent) -> None:
        for command in self._core.handle(event, self._clock()):
            self._perform(command)

    def _perform(self, command: Command) -> None:
        match command:
            case Deliver():
                self._deliver(command)
            case Send(message, buffers):
                if not self._links.send(message, buffers):
                    self._explain_unsent(message)
            case Placed():
                self._note_place(command)
            case Admit(request_id):
                self._generations[request_id].admission.set_result(None)
            case Refuse(request_id, reason, text, retry_after_s, allowance):
                self._refuse(request_id, Rejected(reason, text, retry_after_s, allowance))
            case Resumed(cause=cause):
                self._metrics.generation_resumed(cause)
            case Fail(request_id, text, retryable, field):
                generation = self._end(request_id)
                generation.collector.fail(GenerationFailed(text, retryable, field))
                self._metrics.generation_ended(generation.observer, FinishReason.ERROR, self._clock())
            case Forget(request_id):
                generation = self._end(request_id)
                self._metrics.generation_given_up(generation.observer, generation.abort_cause, self._clock())
            case Leave(reason=why):
                raise ClusterRefusedUs(why)
            case _:
                assert_never(command)

    def _note_place(self, placed: Placed) -> None:
        observer = self._generations[placed.request_id].observer
        self._metrics.generation_placed(observer, placed.engine_index, placed.reason, placed.expected_cached_tokens)

    def _deliver(self, delivery: Deliver) -> None:
        generation = self._generations[delivery.request_id]
        generation.collector.put(delivery)
        generation.num_tokens += len(delivery.token_ids)
        now_s = self._clock()
        generation.observer.delivered(len(delivery.token_ids), now_s, delivery.cached_tokens)
        if delivery.finish_reason is not None:
            self._end(delivery.request_id)
            self._metrics.generation_ended(generation.observer, delivery.finish_reason, now_s)

    def _end(self, request_id: RequestId) -> _Generation:
        generation = self._generations.pop(request_id)
        if generation.deadline is not None:
            generation.deadline.cancel()
        if generation.tenant and self._core.is_welcomed:  # one that cannot be sent costs the tenant what it reserved
            self._links.send(RequestEnded(request_id, generation.num_tokens))
        return generation

    def _refuse(self, request_id: RequestId, rejected: Rejected) -> None:
        self._end(request_id).admission.set_result(rejected)
        self._metrics.generation_rejected(rejected.reason)

    def _explain_unsent(self, message: msgspec.Struct) -> None:
        """A send fails when the connection broke, which the core must hear first, or when the queue is full."""
        for event in self._links.pending_connection_events():
            self._take(event, ())
        if isinstance(message, EngineCoreRequest):
            self._handle(NotSent(message.request_id))

    def check_invariants(self) -> None:
        """For tests."""
        self._core.check_invariants()
        self.view.check_invariants()
        self._cards.check_invariants()
        assert len(self._generations) == self._core.num_generations
