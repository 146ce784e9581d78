"""The client core under any order of events: one end per generation, its tokens in order and whole."""

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, invariant, rule

from api_server.client_core import ClientCore
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
    Refuse,
    SecondPassed,
    Send,
    Submit,
)
from protocol.codec import unpack_token_ids
from protocol.identifiers import ClientIndex, EngineIndex, Incarnation, RequestId
from protocol.messages import (
    PROTOCOL_VERSION,
    Abort,
    Accepted,
    ClientHello,
    ClientWelcome,
    EngineCoreOutput,
    EngineCoreOutputs,
    EngineCoreRequest,
    EngineLost,
    FinishReason,
    Rejected,
    RejectReason,
    RequestKey,
    RequestsLost,
)
from protocol.sampling import SamplingParams

MAX_TOKENS = 6
ENGINES = [Incarnation("engine-a"), Incarnation("engine-b")]
engines = st.sampled_from(ENGINES)


def token(request_id: RequestId, position: int) -> int:
    """What every engine core would generate there: draws depend on the position alone."""
    return int(request_id) * 100 + position


class Caller:
    """What one caller has been told."""

    def __init__(self) -> None:
        self.admitted = False
        self.ends = 0
        self.token_ids: list[int] = []


class ClientCoreMachine(RuleBasedStateMachine):
    submitted = Bundle("submitted")

    def __init__(self) -> None:
        super().__init__()
        hello = ClientHello(PROTOCOL_VERSION, "api-0", Incarnation("api"), "ipc:///tmp/out", 1)
        self.core = ClientCore(hello, resume_timeout_s=3.0)
        self.callers: dict[RequestId, Caller] = {}
        self.index = ClientIndex(-1)
        self.sequences = dict.fromkeys(ENGINES, 0)
        self.welcomed = False
        self.now_s = 0.0
        self.attempts: dict[RequestId, int] = {}
        """Of what was last sent."""

    def tell(self, event: ClientEvent) -> None:
        for command in self.core.handle(event, self.now_s):
            self.take(command)

    def take(self, command: Command) -> None:
        match command:
            case Admit(request_id):
                caller = self.running(request_id)
                assert not caller.admitted
                caller.admitted = True
            case Deliver(request_id, token_ids, finish_reason):
                caller = self.running(request_id)
                assert caller.admitted
                caller.token_ids += token_ids
                caller.ends += finish_reason is not None
            case Fail(request_id):
                caller = self.running(request_id)
                assert caller.admitted
                caller.ends += 1
            case Refuse(request_id):
                caller = self.running(request_id)
                assert not caller.admitted
                caller.ends += 1
            case Forget(request_id):
                self.running(request_id).ends += 1
            case Send(message):
                if isinstance(message, EngineCoreRequest | Abort):
                    assert self.welcomed, "the coordinator does not know us yet"
                if isinstance(message, EngineCoreRequest):
                    self.take_request(message, command.buffers[0])
            case Leave():
                raise AssertionError(command)

    def take_request(self, request: EngineCoreRequest, prompt: bytes) -> None:
        """Each attempt goes on behind what the caller has, as it was when the attempt began."""
        attempt, caller = self.attempts.get(request.request_id, 0), self.callers[request.request_id]
        assert attempt <= request.attempt
        self.attempts[request.request_id] = request.attempt
        output = list(unpack_token_ids(prompt))[1:]
        assert len(output) == request.num_output_tokens == request.num_prompt_tokens - 1
        assert output == caller.token_ids[: len(output)]
        assert len(output) < MAX_TOKENS

    def running(self, request_id: RequestId) -> Caller:
        caller = self.callers[request_id]
        assert caller.ends == 0, "something follows the end"
        return caller

    @rule(target=submitted)
    def submit(self) -> RequestId:
        request_id = RequestId(str(len(self.callers)))
        self.callers[request_id] = Caller()
        self.tell(Submit(request_id, "demo", b"\0\0\0\0", SamplingParams(MAX_TOKENS), 0.0))
        return request_id

    @rule(request_id=submitted, engine=engines, off=st.sampled_from([0, 0, 0, 1, -1]))
    def accepted(self, request_id: RequestId, engine: Incarnation, off: int) -> None:
        attempt = self.attempts.get(request_id, 0) + off
        self.tell(Accepted(RequestKey(request_id, attempt), EngineIndex(0), engine))

    @rule(request_id=submitted, reason=st.sampled_from(RejectReason))
    def rejected(self, request_id: RequestId, reason: RejectReason) -> None:
        self.tell(Rejected(RequestKey(request_id, self.attempts.get(request_id, 0)), reason, "no", 1.0))

    @rule(request_id=submitted, off=st.sampled_from([0, 0, -1]))
    def request_lost(self, request_id: RequestId, off: int) -> None:
        self.tell(RequestsLost([RequestKey(request_id, self.attempts.get(request_id, 0) + off)]))

    @rule(
        request_id=submitted,
        engine=engines,
        position=st.integers(-1, MAX_TOKENS),
        count=st.integers(0, 3),
        finish=st.sampled_from([None, None, None, *FinishReason]),
        attempt=st.sampled_from([0, 0, 0, 1]),
    )
    def any_output(
        self,
        request_id: RequestId,
        engine: Incarnation,
        position: int,
        count: int,
        finish: FinishReason | None,
        attempt: int,
    ) -> None:
        token_ids = [token(request_id, place) for place in range(position, position + count)]
        self.send_outputs(engine, EngineCoreOutput(request_id, attempt, position, token_ids, finish))

    @rule(request_id=submitted, engine=engines, count=st.integers(1, 2))
    def next_output(self, request_id: RequestId, engine: Incarnation, count: int) -> None:
        position = len(self.callers[request_id].token_ids)
        token_ids = [token(request_id, place) for place in range(position, position + count)]
        attempt = self.attempts.get(request_id, 0)
        self.send_outputs(engine, EngineCoreOutput(request_id, attempt, position, token_ids))

    def send_outputs(self, engine: Incarnation, *outputs: EngineCoreOutput) -> None:
        sequence = self.sequences[engine]
        self.sequences[engine] = sequence + 1
        self.tell(EngineCoreOutputs(EngineIndex(0), engine, sequence, 0.0, list(outputs), self.index))

    @rule(request_id=submitted, engine=engines)
    def late_output_under_an_earlier_index(self, request_id: RequestId, engine: Incarnation) -> None:
        wrong = EngineCoreOutput(request_id, 0, len(self.callers[request_id].token_ids), [-1])
        self.tell(EngineCoreOutputs(EngineIndex(0), engine, 9, 0.0, [wrong], ClientIndex(99)))

    @rule(engine=engines)
    def outputs_are_lost(self, engine: Incarnation) -> None:
        self.sequences[engine] += 1

    @rule(engine=engines)
    def engine_lost(self, engine: Incarnation) -> None:
        self.tell(EngineLost(EngineIndex(0), engine, "killed"))

    @rule()
    def link_up(self) -> None:
        self.welcomed = False
        self.tell(LinkUp())

    @rule()
    def link_down(self) -> None:
        self.welcomed = False
        self.tell(LinkDown())

    @rule(coordinator=st.sampled_from(["first", "second"]), index=st.sampled_from([0, 0, 0, 1]))
    def welcome(self, coordinator: str, index: int) -> None:
        self.welcomed = True
        self.tell(ClientWelcome(PROTOCOL_VERSION, Incarnation(coordinator), ClientIndex(index)))
        self.welcomed = self.core.is_welcomed
        if self.welcomed and index != self.index:
            self.index = ClientIndex(index)
            self.sequences = dict.fromkeys(ENGINES, 0)

    @rule(request_ids=st.lists(consumes(submitted), max_size=3))
    def abandon(self, request_ids: list[RequestId]) -> None:
        self.tell(Abandon(request_ids))
        assert all(self.callers[request_id].ends == 1 for request_id in request_ids)

    @rule(request_id=submitted)
    def admission_timed_out(self, request_id: RequestId) -> None:
        self.tell(AdmissionTimedOut(request_id))

    @rule(request_id=submitted)
    def not_sent(self, request_id: RequestId) -> None:
        self.tell(NotSent(request_id))

    @rule(seconds=st.floats(0, 4))
    def time_passes(self, seconds: float) -> None:
        self.now_s += seconds
        self.tell(SecondPassed())

    @invariant()
    def every_stream_is_a_beginning_of_the_true_one(self) -> None:
        for request_id, caller in self.callers.items():
            assert caller.token_ids == [token(request_id, place) for place in range(len(caller.token_ids))]
            assert len(caller.token_ids) <= MAX_TOKENS
        self.core.check_invariants()

    def teardown(self) -> None:
        self.tell(FailAll("shutting down"))
        assert all(caller.ends == 1 for caller in self.callers.values())
        assert self.core.num_generations == 0
        self.core.check_invariants()


TestClientCoreSequences = ClientCoreMachine.TestCase
TestClientCoreSequences.settings = settings(max_examples=100, stateful_step_count=40, deadline=None)
