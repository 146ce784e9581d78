"""A small HTTP server that answers as a test says: it streams with stated delays, fails, breaks off.

Run by hand (`python tests/unit/benchmarks/scripted_server.py PORT`) it is the reference for the generator's own cost.
"""

import asyncio
import json
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Self

DONE = b"data: [DONE]\n\n"


@dataclass
class Script:
    """One answer: parts of the body, each after a delay in seconds."""

    steps: list[tuple[float, bytes]]
    status: int = 200
    content_type: str = "text/event-stream"
    breaks_off: bool = False
    """Closes the connection without the end of the body."""


def event(payload: dict[str, Any]) -> bytes:
    return b"data: " + json.dumps(payload).encode() + b"\n\n"


def chunk(content: str | None = None, finish_reason: str | None = None, **delta: Any) -> bytes:
    if content is not None:
        delta["content"] = content
    return event({"choices": [{"index": 0, "delta": delta, "finish_reason": finish_reason}]})


def usage_of(prompt_tokens: int, completion_tokens: int, cached_tokens: int | None = None) -> dict[str, Any]:
    usage: dict[str, Any] = {"prompt_tokens": prompt_tokens, "completion_tokens": completion_tokens}
    if cached_tokens is not None:
        usage["prompt_tokens_details"] = {"cached_tokens": cached_tokens}
    return usage


def good_stream(
    tokens: int = 4, ttft_s: float = 0.0, itl_s: float = 0.0, usage: dict[str, Any] | None = None
) -> Script:
    """A role chunk at once, then one token an event, the finish reason, usage and [DONE]."""
    steps = [(0.0, chunk("", role="assistant"))]
    steps += [(ttft_s if index == 0 else itl_s, chunk(f" t{index}")) for index in range(tokens)]
    steps.append((0.0, chunk(finish_reason="length")))
    if usage is not None:
        steps.append((0.0, event({"choices": [], "usage": usage})))
    return Script([*steps, (0.0, DONE)])


def json_answer(payload: object, status: int = 200, after_s: float = 0.0) -> Script:
    return Script([(after_s, json.dumps(payload).encode())], status, "application/json")


def whole_answer(prompt_tokens: int = 10, completion_tokens: int = 4, after_s: float = 0.0) -> Script:
    choice = {"index": 0, "message": {"role": "assistant", "content": "words"}, "finish_reason": "length"}
    return json_answer({"choices": [choice], "usage": usage_of(prompt_tokens, completion_tokens)}, after_s=after_s)


def word_count(body: dict[str, Any]) -> int:
    """Words of a chat or plain prompt."""
    if "prompt" in body:
        return len(body["prompt"].split())
    return sum(len(message["content"].split()) for message in body["messages"])


Behaviour = Callable[[dict[str, Any]], Script]


@dataclass
class ScriptedServer:
    """Answers every POST with what `behaviour` makes of its body; an async context manager."""

    behaviour: Behaviour
    models: tuple[str, ...] = ("scripted",)
    models_status: int = 200
    bodies: list[dict[str, Any]] = field(default_factory=list)
    """Of the POST requests, in order of arrival."""
    headers: list[str] = field(default_factory=list)
    """Head of each request."""
    connections: int = 0
    in_flight: int = 0
    most_in_flight: int = 0
    url: str = ""

    async def __aenter__(self) -> Self:
        return await self.start(0)

    async def start(self, port: int) -> Self:
        self._server = await asyncio.start_server(self._connected, "127.0.0.1", port, backlog=1024)
        self.url = f"http://127.0.0.1:{self._server.sockets[0].getsockname()[1]}"
        return self

    async def __aexit__(self, *_: object) -> None:
        self._server.close()
        await self._server.wait_closed()

    async def serve_forever(self) -> None:
        await self._server.serve_forever()

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        try:
            while await self._serve_one(reader, writer):
                pass
        except (asyncio.IncompleteReadError, ConnectionError):
            pass  # the client has gone
        finally:
            writer.close()

    async def _serve_one(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        head = (await reader.readuntil(b"\r\n\r\n")).decode()
        self.headers.append(head)
        lengths = [int(line.split(":")[1]) for line in head.split("\r\n") if line.lower().startswith("content-length")]
        if head.startswith("GET"):
            script = json_answer({"data": [{"id": model} for model in self.models]}, self.models_status)
        else:
            self.bodies.append(json.loads(await reader.readexactly(lengths[0])))
            script = self.behaviour(self.bodies[-1])
        self.in_flight += 1
        self.most_in_flight = max(self.most_in_flight, self.in_flight)
        try:
            await self._play(script, writer)
        finally:
            self.in_flight -= 1
        return not script.breaks_off and "connection: close" not in head.lower()

    async def _play(self, script: Script, writer: asyncio.StreamWriter) -> None:
        writer.write(
            f"HTTP/1.1 {script.status} X\r\nContent-Type: {script.content_type}\r\n"
            "Transfer-Encoding: chunked\r\n\r\n".encode()
        )
        for delay_s, part in script.steps:
            if delay_s:
                await writer.drain()
                await asyncio.sleep(delay_s)
            writer.write(b"%x\r\n%s\r\n" % (len(part), part))
        if not script.breaks_off:
            writer.write(b"0\r\n\r\n")
        await writer.drain()


async def _stand_alone(port: int) -> None:
    def behaviour(body: dict[str, Any]) -> Script:
        if not body["stream"]:
            return whole_answer(word_count(body) + 10)
        tokens = body["max_tokens"]
        return good_stream(tokens, 0.04, 0.04, usage_of(word_count(body) + 10, tokens))

    server = await ScriptedServer(behaviour).start(port)
    print(server.url, flush=True)
    await server.serve_forever()


if __name__ == "__main__":
    asyncio.run(_stand_alone(int(sys.argv[1])))
