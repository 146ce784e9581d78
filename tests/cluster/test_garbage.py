"""Garbage on every socket and every route: a clear error or one counted log line, service undisturbed."""

import contextlib
import random
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
import zmq
from shoal_process import ShoalProcess, running_shoal

from protocol.messages import TYPE_NUMBERS

pytestmark = pytest.mark.cluster

GOOD = {"model": "sim", "prompt": "still here?", "max_tokens": 6, "ignore_eos": True, "temperature": 0}


@pytest.fixture(scope="module")
def run_directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("run")
    directory.chmod(0o700)
    return directory


@pytest.fixture(scope="module")
def shoal(run_directory: Path) -> Iterator[ShoalProcess]:
    with running_shoal("sim:decode_ms=2", "--run-dir", str(run_directory)) as cluster:
        yield cluster


def ask(shoal: ShoalProcess) -> str:
    answer = httpx.post(f"{shoal.url}/v1/completions", json=GOOD, timeout=30)
    assert answer.status_code == 200, answer.text
    return str(answer.json()["choices"][0]["text"])


def malformed_messages(rng: random.Random) -> Iterator[list[bytes]]:
    """Unknown types, cut and random payloads, too few and too many frames."""
    yield [b""]
    yield [b"", b"", b""]
    yield [b"\xff", b"\x90"]
    yield [rng.randbytes(100_000)]
    for number in TYPE_NUMBERS.values():
        yield [bytes([number])]
        yield [bytes([number]), b""]
        yield [bytes([number]), b"\x90"]
        yield [bytes([number]), b"\x91" * 2000]
        yield [bytes([number]), rng.randbytes(40)]
        yield [bytes([number]), rng.randbytes(40), rng.randbytes(7)]


def test_garbage_on_every_zeromq_socket(shoal: ShoalProcess, run_directory: Path) -> None:
    before = ask(shoal)
    rng = random.Random(5)
    paths = [path for path in run_directory.rglob("*") if path.is_socket()]
    assert len(paths) >= 5, paths
    with zmq.Context() as context:
        for path in paths:
            for socket_type in (zmq.DEALER, zmq.PUSH, zmq.REQ):
                with context.socket(socket_type) as intruder:
                    intruder.setsockopt(zmq.LINGER, 300)
                    intruder.setsockopt(zmq.SNDTIMEO, 300)
                    intruder.connect(f"ipc://{path}")
                    for frames in malformed_messages(rng):
                        try:
                            intruder.send_multipart(frames)
                        except zmq.ZMQError:
                            break
    assert ask(shoal) == before
    shoal.wait_for(lambda: shoal.metric("shoal:malformed_messages_total") > 0, 5, "nothing was counted")
    lines = [line for line in shoal.log.splitlines() if "malformed" in line]
    assert 1 <= len(lines) <= 60, lines
    assert "Traceback" not in shoal.log


def test_bytes_that_are_not_zeromq(shoal: ShoalProcess, run_directory: Path) -> None:
    before = ask(shoal)
    rng = random.Random(6)
    for path in run_directory.rglob("*"):
        if path.is_socket():
            for size in (1, 64, 5000):
                with socket.socket(socket.AF_UNIX) as raw:
                    raw.connect(str(path))
                    raw.sendall(rng.randbytes(size))
    assert ask(shoal) == before


BAD_BODIES: list[tuple[bytes, str]] = [
    (b"", "application/json"),
    (b"{", "application/json"),
    (b"null", "application/json"),
    (b"[]", "application/json"),
    (b'"text"', "application/json"),
    (b"42", "application/json"),
    (b"\xff\xfe\x00", "application/json"),
    (b'{"a":' * 5000 + b"1" + b"}" * 5000, "application/json"),
    (b'{"model":"sim","prompt":"\\ud800","max_tokens":1}', "application/json"),
    (b'{"model":"sim","prompt":"x","max_tokens":1,"temperature":NaN}', "application/json"),
    (b'{"model":"sim","prompt":"x","max_tokens":1,"temperature":1e999}', "application/json"),
    (b'{"model":"sim","prompt":[99999999],"max_tokens":1}', "application/json"),
    (b'{"model":"sim","prompt":[-1],"max_tokens":1}', "application/json"),
    (b'{"model":"sim","prompt":"x","max_tokens":1,"logit_bias":{"99999999":1}}', "application/json"),
    (b'{"model":"sim","prompt":"x","max_tokens":1,"seed":99999999999999999999999}', "application/json"),
    (b'{"model":"nobody","prompt":"x","messages":[{"role":"user","content":"x"}]}', "application/json"),
    (b'{"model":"sim","prompt":"x","messages":[{"role":"user","content":"x"}],"max_tokens":0}', "application/json"),
    (b'{"model":"sim","prompt":"x"}', "application/x-www-form-urlencoded"),
    (b'{"model":"sim","prompt":"x"}', "text/plain"),
]


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/completions"])
@pytest.mark.parametrize(("body", "content_type"), BAD_BODIES)
def test_bad_body_is_a_client_error_in_the_api_format(
    shoal: ShoalProcess, path: str, body: bytes, content_type: str
) -> None:
    answer = httpx.post(f"{shoal.url}{path}", content=body, headers={"content-type": content_type}, timeout=10)
    assert 400 <= answer.status_code < 500, (answer.status_code, answer.text)
    error: dict[str, Any] = answer.json()["error"]
    assert error["message"]
    assert {"type", "param", "code"} <= set(error)
    assert len(answer.content) < 4096
    assert ask(shoal)


@pytest.mark.parametrize("method", ["GET", "POST", "PUT", "DELETE", "PATCH", "HEAD", "OPTIONS", "TRACE"])
@pytest.mark.parametrize(
    "path", ["/", "/v1", "/v1/models/", "/v1/models/%00", "/health", "/metrics", "/..%2f..", "/ready"]
)
def test_odd_method_or_path_never_breaks_the_server(shoal: ShoalProcess, method: str, path: str) -> None:
    answer = httpx.request(method, f"{shoal.url}{path}", content=b"\x00", timeout=10)
    assert answer.status_code < 500, (method, path, answer.status_code)


def test_garbage_instead_of_http(shoal: ShoalProcess) -> None:
    rng = random.Random(7)
    for payload in (
        rng.randbytes(2000),
        b"GET / HTTP/9.9\r\n\r\n",
        b"POST /v1/completions HTTP/1.1\r\n" * 5,
        b"\r\n" * 99,
    ):
        with socket.create_connection(("127.0.0.1", shoal.port), timeout=5) as raw:
            raw.sendall(payload)
    assert ask(shoal)


def test_oversized_header_and_body_are_refused(shoal: ShoalProcess) -> None:
    with httpx.Client(base_url=shoal.url, timeout=30) as client:
        too_large = client.post(
            "/v1/completions",
            content=b'{"prompt":"' + b"x" * 17 * 1024 * 1024 + b'"}',
            headers={"content-type": "application/json"},
        )
        assert too_large.status_code == 413
        with contextlib.suppress(httpx.HTTPError):  # closing the connection is an answer, too
            assert client.get("/v1/models", headers={"x-long": "y" * 300_000}).status_code in (400, 431)
    assert ask(shoal)
