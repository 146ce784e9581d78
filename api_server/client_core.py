"""The client side of the cluster as a state machine: events in, commands out, no socket, no clock.

A generation waits until a coordinator has welcomed us, is submitted, accepted, and streams; its outputs come
straight from the engine core that the coordinator chose, on a socket of their own, so they may overtake the
answer. Whatever happens, each generation gets exactly one terminal command: Refuse, Fail, Forget, or a Deliver
with a finish reason.

- Exactly once: output positions count up from 0. What is there already is dropped; a gap is loss. Every engine
  core numbers its messages to us, so that a lost message is noticed by the next one, whatever that is about.
- Given up: a coordinator that had given us up (we were stopped for a while) has made engine cores drop what they
  had for us. It says so by another client index: all that was accepted under the old one ends with an error, also
  what an engine core has finished or died with meanwhile, and what still arrives under the old one is dropped.
- A coordinator's death: what it has not answered is sent again, as the same attempt, to the next one. When that
  one chooses another engine core, its answer is what counts; positions make the change invisible.
- An engine core's death ends what it had (`_lose`; this is the place where a resume would begin).
"""

from typing import assert_never

from api_server.client_events import (
    Abandon,
    AdmissionTimedOut,
    Admit,
    ClientEvent,
    Command,
    Deliver,
    Fail,
    FailAll,
    Forget,
    Leave,
    LinkDown,
    LinkUp,
    NotSent,
    Placed,
    Refuse,
    SecondPassed,
    Send,
    Submit,
)
from api_server.coordinator_link import CoordinatorLink, LinkState
from api_server.live_generation import GenerationState, LiveGeneration
from api_server.output_sequences import OutputSequences
from api_server.stray_outputs import StrayOutputs
from api_server.unacknowledged import Unacknowledged
from protocol.identifiers import Incarnation, RequestId
from protocol.messages import (
    Accepted,
    ClientHello,
    ClientWelcome,
    CoordinatorToClient,
    EngineCoreOutput,
    EngineCoreOutputs,
    EngineLost,
    EngineRun,
    FinishReason,
    Heartbeat,
    Refused,
    Rejected,
    RejectReason,
    RequestKey,
)

MAX_GENERATIONS = 16_384
"""Generations alive at once; more are refused as overload."""
OVERLOAD_RETRY_AFTER_S = 1.0


class ClientCore:
    """Owns all generations of this API server."""

    def __init__(self, hello: ClientHello) -> None:
        """`hello` is what this process says of itself; its client index follows what a coordinator gives."""
        self._link = CoordinatorLink(hello)
        self._live: dict[RequestId, LiveGeneration] = {}
        self._unacknowledged = Unacknowledged()
        self._strays = StrayOutputs()
        self._sequences = OutputSequences()

    @property
    def is_welcomed(self) -> bool:
        """Whether a coordinator takes what we send."""
        return self._link.is_welcomed

    def is_cluster_answering(self, now_s: float) -> bool:
        """Whether a coordinator takes what we send and has lately said something."""
        return self._link.is_answering(now_s)

    @property
    def num_generations(self) -> int:
        """Generations that have not ended."""
        return len(self._live)

    def handle(self, event: ClientEvent, now_s: float) -> list[Command]:
        """Takes one event in and says what to do. `now_s` is any clock that only goes forward."""
        if isinstance(event, CoordinatorToClient):
            self._link.heard(now_s)
        match event:
            case EngineCoreOutputs():
                return self._on_outputs(event, now_s)
            case Submit():
                return self._on_submit(event)
            case Abandon(request_ids):
                return self._on_abandon(request_ids, now_s)
            case Accepted():
                return self._on_accepted(event, now_s)
            case Rejected(key, reason, message, retry_after_s):
                return self._on_rejected(key, reason, message, retry_after_s, now_s)
            case AdmissionTimedOut(request_id):
                return self._refuse_unanswered(request_id, RejectReason.NO_ENGINE, "the cluster did not answer", now_s)
            case NotSent(request_id):
                return self._on_not_sent(request_id, now_s)
            case LinkUp():
                return self._on_link_up()
            case LinkDown():
                return self._on_link_down()
            case ClientWelcome():
                return self._on_welcome(event, now_s)
            case EngineLost(_, incarnation, reason):
                return self._on_engine_lost(incarnation, reason, now_s)
            case SecondPassed():
                return self._on_second_passed()
            case FailAll(message):
                return self._on_fail_all(message, now_s)
            case Heartbeat():
                return []  # being heard was all it wanted
            case Refused(reason=text):
                return [Leave(text)]
        assert_never(event)

    # --- submitting -------------------------------------------------------------------------------------------

    def _on_submit(self, submit: Submit) -> list[Command]:
        assert submit.request_id not in self._live
        if len(self._live) >= MAX_GENERATIONS or not self._unacknowledged.has_room(len(submit.prompt)):
            text = "this API server holds as many requests as it can"
            return [Refuse(submit.request_id, RejectReason.OVERLOADED, text, OVERLOAD_RETRY_AFTER_S)]
        generation = LiveGeneration(submit)
        self._live[submit.request_id] = generation
        self._unacknowledged.add(generation)
        return [self._send(generation)] if self.is_welcomed else []

    def _send(self, generation: LiveGeneration) -> Command:
        generation.move(GenerationState.SUBMITTED)
        generation.was_sent = True
        return Send(generation.request(self._link.client_index), generation.buffers)

    def _on_accepted(self, accepted: Accepted, now_s: float) -> list[Command]:
        generation = self._live.get(accepted.key.request_id)
        if generation is None:
            return self._abort_stray(accepted.key, now_s)
        if accepted.key.attempt != generation.attempt or generation.state is GenerationState.WAITING:
            return []  # while it waits, an answer is one of a connection that is gone; it will be asked again
        generation.engine = EngineRun(accepted.engine_index, accepted.engine_incarnation)
        if not generation.is_acknowledged:
            self._unacknowledged.remove(generation)
            generation.move(GenerationState.STREAMING if generation.num_received else GenerationState.ACCEPTED)
            return [*_placed(accepted), *self._admit(generation)]
        return self._admit(generation)

    def _admit(self, generation: LiveGeneration) -> list[Command]:
        if generation.is_admitted:
            return []
        generation.is_admitted = True
        return [Admit(generation.submit.request_id)]

    def _on_rejected(
        self, key: RequestKey, reason: RejectReason, message: str, retry_after_s: float, now_s: float
    ) -> list[Command]:
        generation = self._live.get(key.request_id)
        if generation is None or key.attempt != generation.attempt or generation.state is not GenerationState.SUBMITTED:
            return []
        self._end(generation, now_s)
        if generation.is_admitted:  # an engine core sent outputs, but the coordinator that knew of it died
            return [Fail(key.request_id, message, retryable=True)]
        return [Refuse(key.request_id, reason, message, retry_after_s)]

    def _on_not_sent(self, request_id: RequestId, now_s: float) -> list[Command]:
        if not self.is_welcomed:  # the connection broke meanwhile: it waits for the next one
            return []
        return self._refuse_unanswered(request_id, RejectReason.NO_ENGINE, "the cluster takes no requests now", now_s)

    def _refuse_unanswered(
        self, request_id: RequestId, reason: RejectReason, message: str, now_s: float
    ) -> list[Command]:
        generation = self._live.get(request_id)
        if generation is None or generation.is_admitted:
            return []
        self._end(generation, now_s)
        return [Refuse(request_id, reason, message, OVERLOAD_RETRY_AFTER_S), *self._abort([generation])]

    # --- outputs ----------------------------------------------------------------------------------------------

    def _on_outputs(self, message: EngineCoreOutputs, now_s: float) -> list[Command]:
        commands: list[Command] = []
        if message.client_index != self._link.client_index:
            return []
        if self._sequences.skips(message.incarnation, message.sequence):
            for generation in self._generations_of(message.incarnation):
                commands += self._lose(generation, "outputs of the engine core were lost", now_s)
        engine = EngineRun(message.engine_index, message.incarnation)
        for output in message.outputs:
            commands += self._on_output(engine, output, now_s)
        return commands

    def _on_output(self, engine: EngineRun, output: EngineCoreOutput, now_s: float) -> list[Command]:
        generation = self._live.get(output.request_id)
        if generation is None:
            return self._abort_stray(output.key, now_s)
        if output.attempt != generation.attempt:
            return []
        if generation.is_acknowledged and generation.incarnation != engine.incarnation:
            return []
        known = generation.num_received - output.position
        if known < 0 or output.position < 0:
            return self._lose(generation, "outputs of the engine core were lost", now_s)
        token_ids = output.token_ids[known:] if known else output.token_ids
        if generation.num_received + len(token_ids) > generation.submit.sampling.max_tokens:
            return self._lose(generation, "the engine core sent more tokens than were asked for", now_s)
        generation.engine = engine
        generation.num_received += len(token_ids)
        return self._admit(generation) + self._deliver(generation, output, token_ids, now_s)

    def _deliver(
        self, generation: LiveGeneration, output: EngineCoreOutput, token_ids: list[int], now_s: float
    ) -> list[Command]:
        request_id, cached = output.request_id, output.cached_tokens
        if token_ids and generation.state is GenerationState.ACCEPTED:
            generation.move(GenerationState.STREAMING)
        if output.finish_reason is None:
            return [Deliver(request_id, token_ids, cached_tokens=cached)] if token_ids else []
        self._end(generation, now_s)
        if output.finish_reason in (FinishReason.STOP, FinishReason.LENGTH):
            return [Deliver(request_id, token_ids, output.finish_reason, output.stop_reason, cached)]
        ended_by_shutdown = output.finish_reason is FinishReason.ABORT
        failure = Fail(request_id, output.error or "the engine core ended the request", retryable=ended_by_shutdown)
        return [Deliver(request_id, token_ids, cached_tokens=cached), failure] if token_ids else [failure]

    # --- ends -------------------------------------------------------------------------------------------------

    def _on_abandon(self, request_ids: list[RequestId], now_s: float) -> list[Command]:
        abandoned = [self._live[request_id] for request_id in dict.fromkeys(request_ids) if request_id in self._live]
        for generation in abandoned:
            self._end(generation, now_s)
        return [*(Forget(generation.submit.request_id) for generation in abandoned), *self._abort(abandoned)]

    def _on_engine_lost(self, incarnation: Incarnation, reason: str, now_s: float) -> list[Command]:
        commands: list[Command] = []
        for generation in self._generations_of(incarnation):
            commands += self._lose(generation, f"the engine core was lost: {reason}", now_s)
        return commands

    def _lose(self, generation: LiveGeneration, reason: str, now_s: float) -> list[Command]:
        """Ends a generation whose engine core, or part of whose output, is gone."""
        self._end(generation, now_s)
        failure = Fail(generation.submit.request_id, reason, retryable=True)
        return [*self._admit(generation), failure, *self._abort([generation])]

    def _on_fail_all(self, message: str, now_s: float) -> list[Command]:
        ended = list(self._live.values())
        commands: list[Command] = []
        for generation in ended:
            self._end(generation, now_s)
            request_id = generation.submit.request_id
            if generation.is_admitted:
                commands.append(Fail(request_id, message, retryable=True))
            else:
                commands.append(Refuse(request_id, RejectReason.NO_ENGINE, message, OVERLOAD_RETRY_AFTER_S))
        return commands + self._abort(ended)

    def _end(self, generation: LiveGeneration, now_s: float) -> None:
        generation.move(GenerationState.ENDED)
        self._unacknowledged.remove(generation)
        del self._live[generation.submit.request_id]
        self._strays.ended(generation.submit.request_id, now_s)

    def _generations_of(self, incarnation: Incarnation) -> list[LiveGeneration]:
        return [generation for generation in self._live.values() if generation.incarnation == incarnation]

    def _abort(self, generations: list[LiveGeneration]) -> list[Command]:
        return [*self._link.abort([generation.key for generation in generations if generation.was_sent])]

    def _abort_stray(self, key: RequestKey, now_s: float) -> list[Command]:
        return [*self._link.abort([key])] if self._strays.needs_abort(key.request_id, now_s) else []

    # --- the link ---------------------------------------------------------------------------------------------

    def _on_link_up(self) -> list[Command]:
        self._on_link_down()
        engines = {generation.engine for generation in self._live.values() if generation.engine is not None}
        return [self._link.greet(sorted(engines))]

    def _on_link_down(self) -> list[Command]:
        self._link.lose()
        for generation in self._unacknowledged:
            if generation.state is GenerationState.SUBMITTED:
                generation.move(GenerationState.WAITING)
        return []

    def _on_welcome(self, welcome: ClientWelcome, now_s: float) -> list[Command]:
        if self._link.state is LinkState.DOWN:  # of a connection that is gone; the next one brings its own
            return []
        index_changed = self._link.welcome(welcome)
        commands: list[Command] = [*self._link.take_pending_aborts()]
        if index_changed:
            # Engine cores address our outputs by the index: what runs under the old one no longer reaches us.
            self._sequences.start_anew()
            for generation in [generation for generation in self._live.values() if generation.is_acknowledged]:
                commands += self._lose(generation, "the cluster no longer knew this API server", now_s)
        return commands + [self._send(generation) for generation in self._unacknowledged]

    def _on_second_passed(self) -> list[Command]:
        return [] if self._link.state is LinkState.DOWN else [Send(Heartbeat())]

    def check_invariants(self) -> None:
        """For tests."""
        for generation in self._live.values():
            generation.check_invariants()
            if not generation.is_acknowledged:
                assert self.is_welcomed is (generation.state is GenerationState.SUBMITTED)
        unanswered = [generation for generation in self._live.values() if not generation.is_acknowledged]
        assert list(self._unacknowledged) == unanswered
        self._unacknowledged.check_invariants()
        self._link.check_invariants()
        self._strays.check_invariants()
        self._sequences.check_invariants()


def _placed(accepted: Accepted) -> list[Command]:
    """Nothing when this coordinator found the request where an earlier one had sent it."""
    key, reason = accepted.key, accepted.reason
    if reason is None:
        return []
    return [Placed(key.request_id, accepted.engine_index, reason, accepted.expected_cached_tokens)]
