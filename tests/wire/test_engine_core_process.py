"""A real engine core process on a simulated device, between a fake coordinator and fake API servers."""

import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import zmq
from engine_core_peers import LIMIT_S, FakeApiServer, FakeCoordinator, engine_core

from protocol.card import unpack_card
from protocol.codec import pack_token_ids
from protocol.grammar import GrammarKind, GrammarSpec
from protocol.identifiers import ClientIndex, EngineIndex, RequestId
from protocol.lifeline import LIFELINE_FD
from protocol.messages import (
    Abort,
    Card,
    EngineCoreRequest,
    EngineHello,
    FinishReason,
    LoadReport,
    Refused,
    RequestKey,
)
from protocol.sampling import SamplingParams

PROMPT = [72, 101, 108, 108, 111]
FAST = "sim:decode_ms=1,decode_ms_per_row=0"
SLOW = "sim:decode_ms=50,decode_ms_per_row=0"


@pytest.fixture
def context() -> Iterator[zmq.SyncContext]:
    context = zmq.Context()
    yield context
    context.destroy(linger=0)


@pytest.fixture
def coordinator(context: zmq.SyncContext, tmp_path: Path) -> FakeCoordinator:
    return FakeCoordinator(context, tmp_path)


@pytest.fixture
def client(context: zmq.SyncContext, tmp_path: Path) -> FakeApiServer:
    return FakeApiServer(context, tmp_path)


def greedy(max_tokens: int) -> SamplingParams:
    return SamplingParams(max_tokens=max_tokens, temperature=0.0)


def wait_load(coordinator: FakeCoordinator, running: int) -> LoadReport:
    deadline = time.monotonic() + LIMIT_S
    while time.monotonic() < deadline:
        report, _ = coordinator.expect(LoadReport)
        if report.load.running == running and report.load.waiting == 0:
            return report
    raise AssertionError(f"{running} running requests are not reported")


def wait_ended(coordinator: FakeCoordinator, key: RequestKey) -> LoadReport:
    while key not in (report := coordinator.expect(LoadReport)[0]).finished:
        pass
    return report


def test_it_loads_greets_and_hands_out_its_card(coordinator: FakeCoordinator) -> None:
    with engine_core(coordinator.address, "sim:load_s=0.2", "--name", "e7", "--served-model-name", "tiny") as engine:
        assert 0 <= engine.expect_notice("loading").progress < 1
        hello = coordinator.welcome(want_card=True)
        assert (hello.name, hello.pid, hello.model.name, hello.requests) == ("e7", engine.process.pid, "tiny", [])
        assert coordinator.peer == f"e7/{hello.incarnation}".encode()
        engine.expect_notice("ready")
        card, buffers = coordinator.expect(Card)
        assert card.card_hash == hello.model.card_hash
        assert unpack_card(buffers[0], card.card_hash).name == "tiny"


@pytest.mark.parametrize("ahead", ["true", "false"])
def test_requests_stream_in_contiguous_positions_and_are_reported_when_they_end(
    coordinator: FakeCoordinator, client: FakeApiServer, ahead: str
) -> None:
    with engine_core(coordinator.address, FAST, "--async-scheduling", ahead):
        coordinator.welcome(client)
        keys = [coordinator.request(client, [*PROMPT, n % 3], greedy(5 + n)) for n in range(40)]
        ends = client.wait_end(*keys)
        assert [end.finish_reason for end in ends] == [FinishReason.LENGTH] * 40
        assert [len(client.tokens(key)) for key in keys] == [5 + n for n in range(40)]
        assert client.tokens(keys[3]) == client.tokens(keys[0])[:5] + client.tokens(keys[3])[5:], (
            "same prompt, same text"
        )
        ended: list[RequestKey] = []
        while len(ended) < 40:
            report, _ = coordinator.expect(LoadReport)
            ended += report.finished
        assert sorted(ended, key=str) == sorted(keys, key=str)
        assert report.adds_received == 40
        assert report.load.generation_tokens_total == sum(5 + n for n in range(40))


def test_a_simulated_model_takes_no_grammar_and_says_so(coordinator: FakeCoordinator, client: FakeApiServer) -> None:
    with engine_core(coordinator.address, FAST):
        coordinator.welcome(client)
        grammar = GrammarSpec(GrammarKind.REGEX, "a", "guided_regex")
        head = RequestId("a"), client.index, 0, "sim", len(PROMPT), greedy(5)
        request = EngineCoreRequest(*head, time.time(), grammar=grammar)
        client.first_positions[request.key] = 0
        coordinator.send(request, pack_token_ids(PROMPT))
        other = coordinator.request(client, PROMPT, greedy(3))
        denied, ended = client.wait_end(request.key, other)
        assert (denied.finish_reason, denied.error_field) == (FinishReason.ERROR, "guided_regex")
        assert denied.error == "guided_regex: this engine core takes no grammars"
        assert ended.finish_reason is FinishReason.LENGTH
        wait_ended(coordinator, request.key)


def test_a_resumed_request_goes_on_where_it_was(coordinator: FakeCoordinator, client: FakeApiServer) -> None:
    with engine_core(coordinator.address, FAST):
        coordinator.welcome(client)
        whole = coordinator.request(client, PROMPT, greedy(10))
        client.wait_end(whole)
        tokens = client.tokens(whole)
        resumed = coordinator.request(client, PROMPT, greedy(10), earlier_output=tokens[:6])
        [end] = client.wait_end(resumed)
        assert (client.tokens(resumed), end.finish_reason) == (tokens[6:], FinishReason.LENGTH)


def test_an_abort_takes_effect_within_a_step(coordinator: FakeCoordinator, client: FakeApiServer) -> None:
    with engine_core(coordinator.address, SLOW):
        coordinator.welcome(client)
        gone, stays = (coordinator.request(client, PROMPT, greedy(1_000)) for _ in range(2))
        client.wait_tokens(gone, 3)
        coordinator.send(Abort([gone]))
        sent = len(client.tokens(gone))
        client.wait_tokens(stays, len(client.tokens(stays)) + 5)
        assert len(client.tokens(gone)) <= sent + 2, "one step was running, one may have been about to start"
        assert wait_ended(coordinator, gone).load.finished_total["abort"] == 1


def test_a_bad_request_fails_alone(coordinator: FakeCoordinator, client: FakeApiServer) -> None:
    with engine_core(coordinator.address, SLOW):
        coordinator.welcome(client)
        good = coordinator.request(client, PROMPT, greedy(10))
        beyond = coordinator.request(client, [1, 259], greedy(10))
        empty = coordinator.request(client, [], greedy(10))
        biased = coordinator.request(client, PROMPT, SamplingParams(max_tokens=3, logit_bias={-1: 1.0}))
        too_long = coordinator.request(client, [1] * 9_000, greedy(10))
        short = EngineCoreRequest(RequestId("short"), client.index, 0, "sim", 3, greedy(3), arrival_time_s=0.0)
        coordinator.send(short, pack_token_ids([1, 2]))
        ragged = EngineCoreRequest(RequestId("ragged"), client.index, 0, "sim", 3, greedy(3), arrival_time_s=0.0)
        coordinator.send(ragged, b"12345")
        bad = client.wait_end(beyond, empty, biased, too_long, short.key, ragged.key)
        assert [end.finish_reason for end in bad] == [FinishReason.ERROR] * 6
        for end, words in zip(bad, ("259", "empty", "-1", "9000", "2 prompt tokens", "multiple"), strict=True):
            assert words in (end.error or ""), end
        [end] = client.wait_end(good)
        assert (end.finish_reason, len(client.tokens(good))) == (FinishReason.LENGTH, 10)


def test_garbage_is_counted_and_changes_nothing(coordinator: FakeCoordinator, client: FakeApiServer) -> None:
    with engine_core(coordinator.address, FAST) as engine:
        coordinator.welcome(client)
        stream = coordinator.request(client, PROMPT, greedy(300))
        garbage = [
            (b"",),
            (b"\x00", b""),
            (b"\x02",),
            (b"\x02", b"\xff"),
            (b"\x31", b"\x01"),
            (b"\x20", b"\x90"),
            (b"x" * 99,),
        ]
        for frames in garbage:
            coordinator.send_raw(*frames)
        nobody = EngineCoreRequest(RequestId("nobody"), ClientIndex(9), 0, "sim", 1, greedy(3), arrival_time_s=0.0)
        coordinator.send(nobody, pack_token_ids([1]))
        [end] = client.wait_end(stream)
        assert (end.finish_reason, len(client.tokens(stream))) == (FinishReason.LENGTH, 300)
        ended: list[RequestKey] = []
        malformed = 0
        while malformed < len(garbage) + 1 or nobody.key not in ended:
            report, _ = coordinator.expect(LoadReport)
            ended += report.finished
            malformed = report.load.malformed_total
        assert malformed == len(garbage) + 1
        engine.terminate()
        code, log = engine.wait()
        assert code == 0
        assert log.count("malformed message dropped") <= 2, "one line tells of many"


def test_an_idle_engine_core_hardly_wakes(coordinator: FakeCoordinator, client: FakeApiServer) -> None:
    with engine_core(coordinator.address, FAST) as engine:
        coordinator.welcome(client)
        client.wait_end(coordinator.request(client, PROMPT, greedy(3)))
        wait_load(coordinator, running=0)
        cpu_s, wake_ups, reports, end = engine.cpu_s(), engine.wake_ups(), 0, time.monotonic() + 5
        while (left := end - time.monotonic()) > 0:
            if coordinator.socket.poll(left * 1_000):
                coordinator.receive()
                reports += 1
        assert 3 <= reports <= 6
        assert engine.cpu_s() - cpu_s <= 0.1
        assert engine.wake_ups() - wake_ups <= 5 * 3, "the input thread and ZeroMQ's own wake once a second"


def test_sigterm_lets_running_requests_finish(coordinator: FakeCoordinator, client: FakeApiServer) -> None:
    with engine_core(coordinator.address, SLOW) as engine:
        coordinator.welcome(client)
        running = coordinator.request(client, PROMPT, greedy(20))
        client.wait_tokens(running, 2)
        engine.terminate()
        engine.expect_notice("draining")
        while not coordinator.expect(LoadReport)[0].load.draining:
            pass
        late = coordinator.request(client, PROMPT, greedy(3))
        ends = client.wait_end(running, late)
        assert [end.finish_reason for end in ends] == [FinishReason.LENGTH] * 2
        assert engine.wait()[0] == 0


def test_at_the_drain_deadline_the_rest_ends_with_an_abort(coordinator: FakeCoordinator, client: FakeApiServer) -> None:
    with engine_core(coordinator.address, SLOW, "--drain-timeout-s", "0.5", "--max-num-seqs", "1") as engine:
        coordinator.welcome(client)
        running, waiting = (coordinator.request(client, PROMPT, greedy(5_000)) for _ in range(2))
        client.wait_tokens(running, 1)
        engine.terminate()
        for end in client.wait_end(running, waiting):
            assert (end.finish_reason, end.error) == (FinishReason.ABORT, "engine core shut down")
        assert engine.wait(3)[0] == 0


def test_an_idle_engine_core_ends_at_once_even_without_a_coordinator(tmp_path: Path) -> None:
    with engine_core(f"ipc://{tmp_path}/nobody", FAST) as engine:
        engine.expect_notice("loading")
        time.sleep(1.5)  # there is nothing that it could tell when it has come to wait for the coordinator
        engine.terminate()
        assert engine.wait(3)[0] == 0


def test_a_second_signal_ends_it_on_the_spot_even_in_a_step_that_hangs(
    coordinator: FakeCoordinator, client: FakeApiServer
) -> None:
    with engine_core(coordinator.address, "sim:hang_at_step=2") as engine:
        coordinator.welcome(client)
        client.wait_tokens(coordinator.request(client, PROMPT, greedy(5)), 1)
        engine.terminate()
        engine.expect_notice("draining")
        engine.terminate()
        assert engine.wait(3)[0] == 3


def test_a_step_that_hangs_shows_in_the_heartbeats_and_does_not_outlive_the_drain(
    coordinator: FakeCoordinator, client: FakeApiServer
) -> None:
    with engine_core(coordinator.address, "sim:hang_at_step=2", "--drain-timeout-s", "0") as engine:
        coordinator.welcome(client)
        client.wait_tokens(coordinator.request(client, PROMPT, greedy(5)), 1)
        while coordinator.expect(LoadReport)[0].load.last_step_age_s < 1.5:
            pass
        engine.terminate()
        assert engine.wait(10)[0] == 3


def test_a_step_that_raises_ends_the_process(coordinator: FakeCoordinator, client: FakeApiServer) -> None:
    with engine_core(coordinator.address, "sim:fail_at_step=3") as engine:
        coordinator.welcome(client)
        key = coordinator.request(client, PROMPT, greedy(5))
        code, log = engine.wait()
        assert code == 1
        assert "step 3 fails" in log
        client.wait_tokens(key, 2)
        assert not client.has_ended(key), "what becomes of it is the coordinator's to say"


def test_a_thread_that_raises_ends_the_process_whatever_the_others_do() -> None:
    program = (
        "import threading; from engine_core.shutdown import start_thread\n"
        "def fail(): raise KeyError('lost')\n"
        "start_thread('input', fail); threading.Event().wait()"
    )
    ended = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=LIMIT_S, check=False
    )
    assert ended.returncode == 1
    assert "KeyError: 'lost'" in ended.stderr


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (["--model", "sim:speed=9"], "speed"),
        (["--model", "sim:decode_ms=slow"], "decode_ms"),
        (["--model", "sim:", "--max-model-len", "9000"], "8192"),
        (["--model", "sim:", "--max-num-seqs", "64", "--max-num-batched-tokens", "32"], "max_num_batched_tokens"),
    ],
)
def test_options_that_cannot_work_end_it_with_code_2(tmp_path: Path, flags: list[str], words: str) -> None:
    with engine_core(f"ipc://{tmp_path}/nobody", *flags[1:]) as engine:
        code, log = engine.wait()
    assert code == 2
    assert words in log
    assert "Traceback" not in log


@pytest.mark.parametrize("by_supervisor", [False, True])
def test_without_mlx_it_says_what_to_install_and_ends_with_code_2(tmp_path: Path, by_supervisor: bool) -> None:
    program = (
        "import sys; sys.modules['mlx'] = None\n"  # Python's own way to say that there is no such module
        "from deploy.cli import main\n"
        f"sys.argv = ['shoal', 'engine-core', '--engines-address=ipc://{tmp_path}/nobody', '--model={tmp_path}']\n"
        "sys.exit(main())"
    )
    ours, theirs = socket.socketpair()
    with ours, theirs:
        ended = subprocess.run(
            [sys.executable, "-c", program],
            env={**os.environ, **({LIFELINE_FD: str(theirs.fileno())} if by_supervisor else {})},
            pass_fds=[theirs.fileno()],
            capture_output=True,
            text=True,
            timeout=30,
            check=False,
        )
    assert ended.returncode == 2
    assert "shoal[engine]" in ended.stderr.splitlines()[-1]
    assert "Traceback" not in ended.stderr


def test_a_refused_engine_core_ends_with_code_2_and_says_why(coordinator: FakeCoordinator) -> None:
    with engine_core(coordinator.address, FAST) as engine:
        coordinator.expect(EngineHello)
        coordinator.send(Refused("versions 1 and 2 do not fit"))
        code, log = engine.wait()
        assert code == 2
        assert "versions 1 and 2 do not fit" in log


def test_streams_go_on_without_the_coordinator_and_the_next_one_hears_of_them(
    context: zmq.SyncContext, tmp_path: Path, coordinator: FakeCoordinator, client: FakeApiServer
) -> None:
    with engine_core(coordinator.address, SLOW) as engine:
        first = coordinator.welcome(client)
        lives = coordinator.request(client, PROMPT, greedy(100))
        ends = coordinator.request(client, PROMPT, greedy(4))
        wait_load(coordinator, running=2)
        coordinator.close()
        client.wait_end(ends)
        client.wait_tokens(lives, len(client.tokens(lives)) + 5)
        successor = FakeCoordinator(context, tmp_path)
        hello = successor.welcome(client)
        assert hello.incarnation == first.incarnation
        assert hello.requests == [(lives, client.index, len(PROMPT))]
        assert hello.engine_index == EngineIndex(0)
        assert hello.load.running == 1
        late = successor.request(client, PROMPT, greedy(2))
        client.wait_end(late)
        assert wait_ended(successor, late).adds_received == 1
        client.wait_end(lives)
        engine.terminate()
        assert engine.wait()[0] == 0


def test_requests_of_an_api_server_that_is_gone_are_dropped(
    context: zmq.SyncContext, tmp_path: Path, coordinator: FakeCoordinator, client: FakeApiServer
) -> None:
    other = FakeApiServer(context, tmp_path, index=1)
    with engine_core(coordinator.address, SLOW):
        coordinator.welcome(client, other)
        stays = coordinator.request(client, PROMPT, greedy(30))
        gone = coordinator.request(other, PROMPT, greedy(1_000))
        wait_load(coordinator, running=2)
        other.close()
        coordinator.send_clients(client)
        assert wait_ended(coordinator, gone).load.running == 1
        client.wait_end(stays)


def test_an_api_server_that_does_not_read_is_given_up_and_the_others_go_on(
    context: zmq.SyncContext, tmp_path: Path, coordinator: FakeCoordinator, client: FakeApiServer
) -> None:
    stuck = FakeApiServer(context, tmp_path, index=1)
    stuck.close()  # nobody takes what is sent to its address
    with engine_core(
        coordinator.address, "sim:decode_ms=0,decode_ms_per_row=0,max_model_len=100000,kv_capacity_tokens=900000"
    ) as engine:
        coordinator.welcome(client, stuck)
        coordinator.request(stuck, PROMPT, greedy(90_000))
        while coordinator.expect(LoadReport, 120)[0].load.finished_total.get("abort") != 1:
            pass
        client.wait_end(coordinator.request(client, PROMPT, greedy(5)))
        engine.terminate()
        code, log = engine.wait()
        assert code == 0
        assert log.count("does not take its outputs") == 1
