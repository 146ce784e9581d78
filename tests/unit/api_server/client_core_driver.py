"""A client core with a clock in hand, and the words of those it talks to."""

from api_server.client_core import ClientCore
from api_server.client_events import ClientEvent, Command, LinkUp, Send, Submit
from protocol.codec import pack_token_ids
from protocol.identifiers import ClientIndex, EngineIndex, Incarnation, RequestId
from protocol.messages import (
    PROTOCOL_VERSION,
    Accepted,
    ClientHello,
    ClientWelcome,
    EngineCoreOutput,
    EngineCoreOutputs,
    FinishReason,
    RequestKey,
)
from protocol.sampling import SamplingParams

R = RequestId("cmpl-1")
KEY = RequestKey(R, 0)
ENGINE = Incarnation("engine-a")
OTHER = Incarnation("engine-b")
COORDINATOR = Incarnation("coordinator-1")
RESUME_TIMEOUT_S = 20.0
HELLO = ClientHello(PROTOCOL_VERSION, "api-0", Incarnation("api"), "ipc:///tmp/out", 1, greeting=1)
"""The first that it says."""


class Driver:
    """A core with a clock in hand; checks the core's invariants after each event."""

    def __init__(self) -> None:
        self.core = ClientCore(HELLO, RESUME_TIMEOUT_S)
        self.now_s = 100.0
        self.index = 0
        self.sequences: dict[Incarnation, int] = {}

    def tell(self, event: ClientEvent) -> list[Command]:
        commands = self.core.handle(event, self.now_s)
        self.core.check_invariants()
        return commands

    def welcome(self, coordinator: Incarnation = COORDINATOR, index: int = 0, greeting: int = 0) -> list[Command]:
        if index != self.index:
            self.index, self.sequences = index, {}
        return self.tell(ClientWelcome(PROTOCOL_VERSION, coordinator, ClientIndex(index), greeting))

    def submit(self, request_id: RequestId = R, max_tokens: int = 8) -> list[Command]:
        prompt = pack_token_ids([1, 2, 3])
        return self.tell(Submit(request_id, "demo", prompt, SamplingParams(max_tokens), arrival_time_s=1.0))

    def accept(self, key: RequestKey = KEY, incarnation: Incarnation = ENGINE) -> list[Command]:
        return self.tell(Accepted(key, EngineIndex(0), incarnation))

    def outputs(self, *outputs: EngineCoreOutput, incarnation: Incarnation = ENGINE, lost: int = 0) -> list[Command]:
        sequence = self.sequences.get(incarnation, 0) + lost
        self.sequences[incarnation] = sequence + 1
        return self.tell(
            EngineCoreOutputs(EngineIndex(0), incarnation, sequence, 0.0, list(outputs), ClientIndex(self.index))
        )

    def output(self, position: int, token_ids: list[int], finish: FinishReason | None = None) -> list[Command]:
        return self.outputs(EngineCoreOutput(R, 0, position, token_ids, finish))


def welcomed_driver() -> Driver:
    """Connected and welcomed."""
    driver = Driver()
    assert driver.tell(LinkUp()) == [Send(HELLO)]
    assert driver.welcome() == []
    return driver
