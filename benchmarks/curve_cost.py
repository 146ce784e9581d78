"""What CURVE costs: one step's message from an engine core to an API server over TCP, encrypted and not.

python -m benchmarks.curve_cost [MESSAGES]

Both ends are sockets of one process, as protocol.sockets makes them; a message is what a step with 64 running requests
sends. CPU time is that of the whole process (both ends, libzmq's threads included), best of five runs of each kind in
turn.
"""

import sys
import time

import zmq

from protocol.codec import Frame, encode
from protocol.curve import CurveClient, CurveServer, KeyPair, new_key_pair
from protocol.doorkeeper import AllowedKeys, Doorkeeper
from protocol.identifiers import EngineIndex, Incarnation, new_request_id
from protocol.messages import EngineCoreOutput, EngineCoreOutputs
from protocol.sockets import SocketKind, open_door, open_socket

REQUESTS = 64
RUNS = 5


def step_message() -> list[Frame]:
    """What one step sends to one API server."""
    outputs = [EngineCoreOutput(new_request_id("cmpl"), 0, 100, [1000 + number]) for number in range(REQUESTS)]
    return encode(EngineCoreOutputs(EngineIndex(0), Incarnation("0" * 16), 1, time.time(), outputs))


def measure(messages: int, pair: KeyPair | None) -> float:
    """Microseconds of CPU time for a message, sent so many times, each received before the next."""
    frames = step_message()
    with zmq.Context() as context, open_door(context) as door:
        server = None if pair is None else CurveServer(pair)
        client = None if pair is None else CurveClient(pair, pair.public)
        receiver, address = open_socket(context, SocketKind.OUTPUTS_IN, "tcp://127.0.0.1:0", server)
        sender, _ = open_socket(context, SocketKind.OUTPUTS_OUT, address, client)
        with receiver, sender:
            sender.send_multipart(frames)
            if pair is not None:
                keeper = Doorkeeper(AllowedKeys([pair.public], None), time.monotonic)
                door.send_multipart(keeper.reply(door.recv_multipart()))
            receiver.recv_multipart()
            began_s = time.process_time()
            for _ in range(messages):
                sender.send_multipart(frames)
                receiver.recv_multipart()
            return (time.process_time() - began_s) / messages * 1e6


def main() -> None:
    """Prints both costs and their ratio."""
    messages = int(sys.argv[1]) if len(sys.argv) > 1 else 5_000
    pair = new_key_pair()
    runs = [(measure(messages, None), measure(messages, pair)) for _ in range(RUNS)]
    plain_us, curve_us = (min(costs) for costs in zip(*runs, strict=True))
    size = sum(len(frame) for frame in step_message())
    print(f"message of {size} bytes ({REQUESTS} requests), {messages} messages, best of {RUNS} runs")
    print(f"plain tcp {plain_us:.1f} us of CPU, CURVE {curve_us:.1f} us, ratio {curve_us / plain_us:.2f}")


if __name__ == "__main__":
    main()
