"""One fully filled-in example of each message, and its bytes as they were when the message was defined."""

from protocol.grammar import GrammarKind, GrammarSpec
from protocol.identifiers import ClientIndex, EngineIndex, Incarnation, RequestId
from protocol.logprobs import PackedLogprobs
from protocol.messages import (
    Abort,
    Accepted,
    BlocksChanged,
    Card,
    CardUnknown,
    Cleared,
    ClientAddress,
    ClientHello,
    Clients,
    ClientWelcome,
    ClusterSnapshot,
    EngineCoreOutput,
    EngineCoreOutputs,
    EngineCoreRequest,
    EngineHello,
    EngineLost,
    EngineRun,
    EngineState,
    EngineUpdate,
    EngineWelcome,
    FinishReason,
    GetBlocks,
    GetCard,
    Heartbeat,
    Load,
    LoadReport,
    MemberProcess,
    Message,
    ModelInfo,
    ProcessExited,
    Refused,
    Rejected,
    RejectReason,
    RequestEnded,
    RequestKey,
    RequestsLost,
    RouteReason,
    SsdLoad,
    TenantState,
    TokenAllowance,
)
from protocol.sampling import SamplingParams

KEY = RequestKey(RequestId("r"), 2)
RUN = Incarnation("i")
MODEL = ModelInfo("m", "h", 11, 12)
LOAD = Load(1, 2, 3, 4, 5, 6, 7, 8, {"stop": 9}, 10, 11, True, 0.5, 12, 13, SsdLoad(14, 15, 16, 17, 18))
STATE = EngineState(EngineIndex(1), "n", RUN, MODEL, LOAD, 2)
SAMPLING = SamplingParams(
    max_tokens=1,
    seed=2,
    temperature=0.25,
    top_p=0.5,
    top_k=3,
    min_p=0.75,
    repetition_penalty=1.5,
    presence_penalty=1.25,
    frequency_penalty=1.75,
    min_tokens=4,
    stop_token_ids=(5,),
    ignore_eos=True,
    logit_bias={6: 0.5},
    logprobs=7,
    allowed_token_ids=(8,),
    bad_words_token_ids=((9,),),
    prompt_logprobs=10,
)
GRAMMAR = GrammarSpec(GrammarKind.REGEX, "g", "f", (1,))
LOGPROBS = PackedLogprobs(1, b"abcd", b"efgh", b"ijkl", b"mnop")
OUTPUT = EngineCoreOutput(RequestId("r"), 1, 2, [3], FinishReason.LENGTH, 4, 5, "e", LOGPROBS, LOGPROBS, "f")

SAMPLES: list[Message] = [
    ClientHello(1, "n", RUN, "a", 2, ClientIndex(3), [EngineRun(EngineIndex(4), RUN)], [(KEY, RUN)], "p", 5, 0.5),
    EngineCoreRequest(
        RequestId("r"), ClientIndex(1), 2, "m", 3, SAMPLING, 0.5, 4, "s", 2, 1.5, "k", 0, 3, "t", GRAMMAR
    ),
    Abort([KEY]),
    Cleared([KEY]),
    GetCard("h"),
    Heartbeat(),
    ProcessExited("n", 1, True),
    RequestEnded(RequestId("r"), 3),
    ClientWelcome(1, RUN, ClientIndex(2), 3),
    Accepted(KEY, EngineIndex(1), RUN, 64, RouteReason.AFFINITY, 3),
    Rejected(KEY, RejectReason.OVERLOADED, "m", 0.5, TokenAllowance(4, 5, 0.25), 6),
    EngineLost(EngineIndex(1), RUN, "r", True),
    Card("h"),
    CardUnknown("h"),
    Refused("r"),
    RequestsLost([KEY], RUN),
    EngineHello(1, "n", RUN, 2, MODEL, LOAD, [(KEY, ClientIndex(3), 4)], EngineIndex(5), [ClientIndex(6)], 7, 0.5),
    LoadReport(LOAD, 1, [KEY], [ClientIndex(2)]),
    BlocksChanged(1, True),
    EngineWelcome(1, RUN, EngineIndex(2), True, 3),
    Clients([ClientAddress(ClientIndex(1), "a", "p")], 2, RUN),
    GetBlocks(),
    EngineCoreOutputs(EngineIndex(1), RUN, 2, 0.5, [OUTPUT], ClientIndex(3)),
    ClusterSnapshot(
        1, RUN, [STATE], ["n"], 2, {"overloaded": 3}, [MemberProcess("n", 4)], [TenantState("t", 4, 5, 6)], True
    ),
    EngineUpdate(1, STATE),
]

GOLDEN: dict[type[Message], str] = {
    ClientHello: "019b01a16ea169a1610203919204a169919292a17202a169a17005cb3fe0000000000000",
    EngineCoreRequest: (
        "02dc0010a1720102a16d03dc00110102cb3fd0000000000000cb3fe000000000000003cb3fe8000000000000cb3ff80000000000"
        "00cb3ff4000000000000cb3ffc000000000000049105c38106cb3fe00000000000000791089191090acb3fe0000000000000"
        "04a17302cb3ff8000000000000a16b0003a1749402a167a1669101"
    ),
    Abort: "03919192a17202",
    Cleared: "07919192a17202",
    GetCard: "0491a168",
    Heartbeat: "0590",
    ProcessExited: "0693a16e01c3",
    RequestEnded: "0892a17203",
    ClientWelcome: "109401a1690203",
    Accepted: "119692a1720201a169400203",
    Rejected: "129692a1720203a16dcb3fe0000000000000930405cb3fd000000000000006",
    EngineLost: "139401a169a172c3",
    Card: "1491a168",
    CardUnknown: "1591a168",
    Refused: "1691a172",
    RequestsLost: "17929192a17202a169",
    EngineHello: (
        "209b01a16ea1690294a16da1680b0cdc0010010203040506070881a473746f70090a0bc3cb3fe00000000000000c0d950e0f"
        "101112919392a17202030405910607cb3fe0000000000000"
    ),
    LoadReport: "2194dc0010010203040506070881a473746f70090a0bc3cb3fe00000000000000c0d950e0f101112019192a172029102",
    BlocksChanged: "229201c3",
    EngineWelcome: "309501a16902c303",
    Clients: "3193919301a161a17002a169",
    GetBlocks: "3290",
    EngineCoreOutputs: (
        "409601a16902cb3fe0000000000000919ba17201029103020405a1659501c40461626364c40465666768c404696a6b6cc404"
        "6d6e6f709501c40461626364c40465666768c404696a6b6cc4046d6e6f70a16603"
    ),
    ClusterSnapshot: (
        "509901a169919601a16ea16994a16da1680b0cdc0010010203040506070881a473746f70090a0bc3cb3fe00000000000000c"
        "0d950e0f1011120291a16e0281aa6f7665726c6f61646564039192a16e049194a174040506c3"
    ),
    EngineUpdate: (
        "5192019601a16ea16994a16da1680b0cdc0010010203040506070881a473746f70090a0bc3cb3fe00000000000000c0d950e0f10111202"
    ),
}
"""Type byte and payload, hexadecimal. A message that changes here can no longer talk to older processes."""
