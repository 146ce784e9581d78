"""One fully filled-in example of each message, and its bytes as they were when the message was defined."""

from protocol.identifiers import ClientIndex, EngineIndex, Incarnation, RequestId
from protocol.messages import (
    Abort,
    Accepted,
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
    RequestKey,
    RequestsLost,
)
from protocol.sampling import SamplingParams

KEY = RequestKey(RequestId("r"), 2)
RUN = Incarnation("i")
MODEL = ModelInfo("m", "h", 11, 12)
LOAD = Load(1, 2, 3, 4, 5, 6, 7, 8, {"stop": 9}, 10, 11, True, 0.5, 12, 13)
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
)
OUTPUT = EngineCoreOutput(RequestId("r"), 1, 2, [3], FinishReason.LENGTH, 4, 5, "e")

SAMPLES: list[Message] = [
    ClientHello(1, "n", RUN, "a", 2, ClientIndex(3), [EngineRun(EngineIndex(4), RUN)], [(KEY, RUN)], "p"),
    EngineCoreRequest(RequestId("r"), ClientIndex(1), 2, "m", 3, SAMPLING, 0.5, 4, "s", 2, 1.5, "k", 0, 3),
    Abort([KEY]),
    Cleared([KEY]),
    GetCard("h"),
    Heartbeat(),
    ProcessExited("n", 1),
    ClientWelcome(1, RUN, ClientIndex(2)),
    Accepted(KEY, EngineIndex(1), RUN),
    Rejected(KEY, RejectReason.OVERLOADED, "m", 0.5),
    EngineLost(EngineIndex(1), RUN, "r"),
    Card("h"),
    CardUnknown("h"),
    Refused("r"),
    RequestsLost([KEY]),
    EngineHello(1, "n", RUN, 2, MODEL, LOAD, [(KEY, ClientIndex(3), 4)], EngineIndex(5), [ClientIndex(6)]),
    LoadReport(LOAD, 1, [KEY]),
    EngineWelcome(1, RUN, EngineIndex(2), True),
    Clients([ClientAddress(ClientIndex(1), "a", "p")]),
    EngineCoreOutputs(EngineIndex(1), RUN, 2, 0.5, [OUTPUT], ClientIndex(3)),
    ClusterSnapshot(1, RUN, [STATE], ["n"], 2, {"overloaded": 3}, [MemberProcess("n", 4)]),
    EngineUpdate(1, STATE),
]

GOLDEN: dict[type[Message], str] = {
    ClientHello: "019901a16ea169a1610203919204a169919292a17202a169a170",
    EngineCoreRequest: (
        "029ea1720102a16d039d0102cb3fd0000000000000cb3fe000000000000003cb3fe8000000000000cb3ff8000000000000cb"
        "3ff4000000000000cb3ffc000000000000049105c38106cb3fe0000000000000cb3fe000000000000004a17302cb3ff8000000000000a16b0003"
    ),
    Abort: "03919192a17202",
    Cleared: "07919192a17202",
    GetCard: "0491a168",
    Heartbeat: "0590",
    ProcessExited: "0692a16e01",
    ClientWelcome: "109301a16902",
    Accepted: "119392a1720201a169",
    Rejected: "129492a1720203a16dcb3fe0000000000000",
    EngineLost: "139301a169a172",
    Card: "1491a168",
    CardUnknown: "1591a168",
    Refused: "1691a172",
    RequestsLost: "17919192a17202",
    EngineHello: (
        "209901a16ea1690294a16da1680b0c9f010203040506070881a473746f70090a0bc3cb3fe00000000000000c0d919392a172020304059106"
    ),
    LoadReport: "21939f010203040506070881a473746f70090a0bc3cb3fe00000000000000c0d019192a17202",
    EngineWelcome: "309401a16902c3",
    Clients: "3191919301a161a170",
    EngineCoreOutputs: "409601a16902cb3fe00000000000009198a17201029103020405a16503",
    ClusterSnapshot: (
        "509701a169919601a16ea16994a16da1680b0c9f010203040506070881a473746f70090a0bc3cb3fe00000000000000c0d0291a1"
        "6e0281aa6f7665726c6f61646564039192a16e04"
    ),
    EngineUpdate: "5192019601a16ea16994a16da1680b0c9f010203040506070881a473746f70090a0bc3cb3fe00000000000000c0d02",
}
"""Type byte and payload, hexadecimal. A message that changes here can no longer talk to older processes."""
