"""The client side of the cluster as a state machine: events in, commands out, no socket, no clock.

A generation waits until a coordinator has welcomed us, is submitted, accepted, and streams; its outputs come
straight from the engine core that the coordinator chose, on a socket of their own, so they may overtake the
answer. Whatever happens, each generation gets exactly one terminal command: Refuse, Fail, Forget, or a Deliver
with a finish reason.

- Exactly once: output positions count up from 0. What is there already is dropped; a gap is loss. Every engine
  core numbers its messages to us, so that a lost message is noticed by the next one, whatever that is about.
- Resume: a generation whose engine core died or drained, or part of whose output is missing, is submitted again as
  the next attempt, with what there is of its output behind its prompt, and goes on from there: nobody notices. What
  comes of an older attempt is dropped. It waits for another engine core for a bounded time. One that engine cores
  die of fails.
- Given up: a coordinator that had given us up (we were stopped for a while) has made engine cores drop what they
  had for us. It says so by another client index: all that was accepted under the old one is resumed, also what an
  engine core has finished or died with meanwhile, and what still arrives under the old one is dropped.
- A coordinator's death: what it has not answered is sent again, as the same attempt, to the next one. When that
  one chooses another engine core, its answer is what counts; positions make the change invisible. What it had
  accepted is listed in our Hello: the next one says what of it never reached its engine core.
"""

from typing import assert_never

from msgspec.structs import replace

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
    LinkRefused,
    LinkUp,
    NotSent,
    Placed,
    Refuse,
    ResumeCause,
    Resumed,
    SecondPassed,
    Send,
    Submit,
)
from api_server.coordinator_link import CoordinatorLink, LinkState
from api_server.live_generation import GenerationState, LiveGeneration
from api_server.output_logprobs import output_logprobs, prompt_logprobs
from api_server.output_sequences import OutputSequences
from api_server.stray_outputs import StrayOutputs
from api_server.unacknowledged import Unacknowledged
from api_server.verdict import GivenUp, GoesOn, OnlyEndMissing, verdict
from protocol.errors import ProtocolError
from protocol.identifiers import Incarnation, RequestId
from protocol.messages import (
    Accepted,
    Cleared,
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
    RequestsLost,
)

MAX_GENERATIONS = 16_384
"""Generations alive at once; more are refused as overload."""
OVERLOAD_RETRY_AFTER_S = 1.0


class ClientCore:
    """Owns all generations of this API server."""

    def __init__(self, hello: ClientHello, resume_timeout_s: float) -> None:
        """`hello` is what this process says of itself; its client index follows what a coordinator gives.

        `resume_timeout_s` is how long a generation that has lost its engine core waits for another.
        """
        self._link = CoordinatorLink(hello)
        self._resume_timeout_s = resume_timeout_s
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
            case Rejected():
                return self._on_rejected(event, now_s)
            case AdmissionTimedOut(request_id):
                return self._refuse_unanswered(request_id, RejectReason.NO_ENGINE, "the cluster did not answer", now_s)
            case DeadlinePassed(request_id):
                return self._on_deadline(request_id, now_s)
            case NotSent(request_id):
                return self._on_not_sent(request_id, now_s)
            case LinkUp():
                return self._on_link_up()
            case LinkDown():
                return self._on_link_down()
            case ClientWelcome():
                return self._on_welcome(event, now_s)
            case EngineLost():
                return self._on_engine_lost(event, now_s)
            case RequestsLost(keys, all_of):
                return self._on_requests_lost([*keys, *(each.key for each in self._generations_of(all_of))], now_s)
            case SecondPassed():
                return self._on_second_passed(now_s)
            case FailAll(message):
                return self._on_fail_all(message, now_s)
            case Heartbeat():
                return []  # being heard was all it wanted
            case Refused(reason=text) | LinkRefused(reason=text):
                return [Leave(text)]
        assert_never(event)

    # --- submitting -------------------------------------------------------------------------------------------

    def _on_submit(self, submit: Submit) -> list[Command]:
        assert submit.request_id not in self._live
        if len(self._live) >= MAX_GENERATIONS or not self._unacknowledged.has_room(submit.nbytes):
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
        is_outdated = generation.state is GenerationState.WAITING or self._link.is_outdated(accepted.greeting)
        if accepted.key.attempt != generation.attempt or is_outdated:
            return []  # an answer of a connection that is gone; it is asked again
        generation.engine = EngineRun(accepted.engine_index, accepted.engine_incarnation)
        generation.taken_over()
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

    def _on_rejected(self, rejected: Rejected, now_s: float) -> list[Command]:
        key = rejected.key
        generation = self._live.get(key.request_id)
        if generation is None or key.attempt != generation.attempt or generation.state is not GenerationState.SUBMITTED:
            return []
        if self._link.is_outdated(rejected.greeting):
            return []
        is_ours = rejected.reason is RejectReason.DUPLICATE  # under another client index
        if generation.is_admitted or is_ours:
            return self._postpone(generation)
        self._end(generation, now_s)
        why = rejected.reason, rejected.message, rejected.retry_after_s, rejected.allowance
        if rejected.reason is RejectReason.UNKNOWN_MODEL:  # to a coordinator that has just started: we have its card
            why = RejectReason.NO_ENGINE, rejected.message, OVERLOAD_RETRY_AFTER_S, rejected.allowance
        return [Refuse(key.request_id, *why)]

    def _postpone(self, generation: LiveGeneration) -> list[Command]:
        generation.move(GenerationState.WAITING)
        self._unacknowledged.postpone(generation)
        return []

    def _on_not_sent(self, request_id: RequestId, now_s: float) -> list[Command]:
        if not self.is_welcomed:  # the connection broke meanwhile: it waits for the next one
            return []
        generation = self._live.get(request_id)
        if generation is not None and generation.is_admitted and generation.state is GenerationState.SUBMITTED:
            return self._postpone(generation)
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
                commands += self._resume(generation, ResumeCause.OUTPUTS_LOST, now_s)
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
            return self._resume(generation, ResumeCause.OUTPUTS_LOST, now_s)
        try:
            logprobs = output_logprobs(output, generation.submit.sampling)[known:]
            scores = [] if known else prompt_logprobs(output, generation.submit.sampling, generation.num_prompt_tokens)
        except ProtocolError as error:
            return self._fail(generation, str(error), now_s)
        token_ids = output.token_ids[known:] if known else output.token_ids
        if generation.num_received + len(token_ids) > generation.submit.sampling.max_tokens:
            return self._fail(generation, "the engine core sent more tokens than were asked for", now_s)
        generation.engine = engine
        is_cleared = generation.receive(token_ids)
        news = Deliver(output.request_id, token_ids, None, None, output.cached_tokens, logprobs, scores)
        commands = self._admit(generation) + self._deliver(generation, output, news, now_s)
        if is_cleared and output.finish_reason is None and self.is_welcomed:
            commands.append(Send(Cleared([output.key])))
        return commands

    def _deliver(
        self, generation: LiveGeneration, output: EngineCoreOutput, news: Deliver, now_s: float
    ) -> list[Command]:
        delivery: list[Command] = [news] if news.token_ids else []
        if news.token_ids and generation.state is GenerationState.ACCEPTED:
            generation.move(GenerationState.STREAMING)
        if output.finish_reason is None:
            return delivery
        if output.finish_reason is FinishReason.ABORT and not generation.is_whole:  # by its shutdown
            return [*delivery, *self._resume(generation, ResumeCause.ENGINE_DRAINED, now_s)]
        self._end(generation, now_s)
        if output.finish_reason in (FinishReason.STOP, FinishReason.LENGTH, FinishReason.TIMEOUT):
            return [replace(news, finish_reason=output.finish_reason, stop_reason=output.stop_reason)]
        if output.finish_reason is FinishReason.ABORT:
            return [replace(news, finish_reason=FinishReason.LENGTH)]
        text = output.error or "the engine core ended the request"
        return [*delivery, Fail(output.request_id, text, retryable=False, field=output.error_field)]

    # --- ends -------------------------------------------------------------------------------------------------

    def _on_abandon(self, request_ids: list[RequestId], now_s: float) -> list[Command]:
        abandoned = [self._live[request_id] for request_id in dict.fromkeys(request_ids) if request_id in self._live]
        for generation in abandoned:
            self._end(generation, now_s)
        return [*(Forget(generation.submit.request_id) for generation in abandoned), *self._abort(abandoned)]

    def _on_deadline(self, request_id: RequestId, now_s: float) -> list[Command]:
        generation = self._live.get(request_id)
        if generation is None or not generation.is_admitted:
            text = "the request's time was up before it was accepted"
            return self._refuse_unanswered(request_id, RejectReason.TIMED_OUT, text, now_s)
        self._end(generation, now_s)
        return [Deliver(request_id, [], FinishReason.TIMEOUT), *self._abort([generation])]

    def _fail(self, generation: LiveGeneration, reason: str, now_s: float, retryable: bool = True) -> list[Command]:
        self._end(generation, now_s)
        failure = Fail(generation.submit.request_id, reason, retryable)
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

    # --- resume -----------------------------------------------------------------------------------------------

    def _on_engine_lost(self, lost: EngineLost, now_s: float) -> list[Command]:
        commands: list[Command] = []
        for generation in self._generations_of(lost.incarnation):
            generation.engine_died(lost.incarnation, lost.by_fault)
            commands += self._resume(generation, ResumeCause.ENGINE_LOST, now_s)
        if lost.by_fault:
            commands += self._blame_later(lost.incarnation, now_s)
        return commands

    def _blame_later(self, incarnation: Incarnation, now_s: float) -> list[Command]:
        """The engine core was lost before; now it is known that it died by itself."""
        commands: list[Command] = []
        for generation in list(self._live.values()):
            if generation.died_by_fault(incarnation) and isinstance(end := verdict(generation), GivenUp):
                commands += self._fail(generation, end.message, now_s, end.may_be_sent_again)
        return commands

    def _on_requests_lost(self, keys: list[RequestKey], now_s: float) -> list[Command]:
        commands: list[Command] = []
        for key in keys:
            generation = self._live.get(key.request_id)
            if generation is not None and generation.key == key and generation.is_acknowledged:
                commands += self._resume(generation, ResumeCause.REQUEST_LOST, now_s)
        return commands

    def _resume(self, generation: LiveGeneration, cause: ResumeCause, now_s: float) -> list[Command]:
        """Lets a generation go on as another attempt, unless it has all its tokens or is not to be tried again."""
        match verdict(generation):
            case GivenUp(message, may_be_sent_again):
                return self._fail(generation, message, now_s, may_be_sent_again)
            case OnlyEndMissing():
                self._end(generation, now_s)
                end = Deliver(generation.submit.request_id, [], FinishReason.LENGTH)
                return [*self._admit(generation), end, *self._abort([generation])]
            case GoesOn():
                return self._submit_next_attempt(generation, cause, now_s)

    def _submit_next_attempt(self, generation: LiveGeneration, cause: ResumeCause, now_s: float) -> list[Command]:
        self._unacknowledged.remove(generation)
        generation.next_attempt(now_s + self._resume_timeout_s)
        self._unacknowledged.add(generation)
        resumed = [*self._admit(generation), Resumed(generation.submit.request_id, cause)]
        return [*resumed, self._send(generation)] if self.is_welcomed else resumed

    def _give_up_overdue(self, now_s: float) -> list[Command]:
        commands: list[Command] = []
        for generation in list(self._unacknowledged):
            if generation.resume_deadline_s <= now_s:
                text = f"no engine core could go on with it within {self._resume_timeout_s:g} s"
                commands += self._fail(generation, text, now_s)
        return commands

    # --- the link ---------------------------------------------------------------------------------------------

    def _on_link_up(self) -> list[Command]:
        self._on_link_down()
        engines = {generation.engine for generation in self._live.values() if generation.engine is not None}
        accepted = [
            (generation.key, generation.engine.incarnation)
            for generation in self._live.values()
            if generation.is_acknowledged and generation.engine is not None
        ]
        return [self._link.greet(sorted(engines), accepted)]

    def _on_link_down(self) -> list[Command]:
        self._link.lose()
        for generation in self._unacknowledged:
            if generation.state is GenerationState.SUBMITTED:
                generation.move(GenerationState.WAITING)
        return []

    def _on_welcome(self, welcome: ClientWelcome, now_s: float) -> list[Command]:
        if not self._link.is_answered_by(welcome):  # the present connection brings its own
            return []
        index_changed = self._link.welcome(welcome)
        commands: list[Command] = [*self._link.take_pending_aborts()]
        self._unacknowledged.take_postponed()
        commands += [self._send(generation) for generation in self._unacknowledged]
        if index_changed:
            # Engine cores address our outputs by the index: what runs under the old one no longer reaches us.
            self._sequences.start_anew()
            for generation in [generation for generation in self._live.values() if generation.is_acknowledged]:
                commands += self._resume(generation, ResumeCause.REQUEST_LOST, now_s)
        return commands

    def _on_second_passed(self, now_s: float) -> list[Command]:
        commands = self._give_up_overdue(now_s)
        if self.is_welcomed:
            commands += [self._send(generation) for generation in self._unacknowledged.take_postponed()]
        return commands if self._link.state is LinkState.DOWN else [Send(Heartbeat()), *commands]

    def check_invariants(self) -> None:
        """For tests."""
        for generation in self._live.values():
            generation.check_invariants()
            if generation in self._unacknowledged:
                is_to_be_sent = not self.is_welcomed or self._unacknowledged.is_postponed(generation)
                assert is_to_be_sent is (generation.state is GenerationState.WAITING)
            assert (generation in self._unacknowledged) is not generation.is_acknowledged
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
