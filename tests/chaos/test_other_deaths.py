"""The coordinator or an API server dies or freezes while streams run."""

import threading
import time

import httpx
import pytest
from chaos_cluster import SIM, STEP_S, assert_back_and_idle, member, resumed
from chaos_streams import Stream, assert_undisturbed, run_streams
from shoal_process import running_shoal

from deploy.absence import ABSENT_AFTER_S
from protocol.heartbeats import SILENCE_S

pytestmark = pytest.mark.cluster

STREAMS = 32


def test_kill_9_of_the_coordinator_pauses_no_stream_and_new_requests_wait_for_it(undisturbed: list[Stream]) -> None:
    expected = undisturbed[:STREAMS]
    answers: list[httpx.Response] = []

    def strike() -> None:
        member(shoal, "coordinator").kill()
        for _ in range(8):  # at once, while there is none
            body = {"model": "sim", "prompt": "new", "max_tokens": 5}
            answers.append(httpx.post(f"{shoal.url}/v1/completions", json=body, timeout=30))

    with running_shoal(SIM) as shoal:
        streams = run_streams(shoal, [stream.body for stream in expected], strike, 1.0)
        assert_undisturbed(streams, expected)
        assert [answer.status_code for answer in answers] == [200] * 8
        assert resumed(shoal) == 0, "streams did notice"
        assert max(stream.longest_gap_s for stream in streams) < 20 * STEP_S, (
            "a busy machine may be late, not a restart"
        )
        assert_back_and_idle(shoal, engines=2)


def test_coordinator_and_engine_core_killed_together_are_not_noticed(undisturbed: list[Stream]) -> None:
    expected = undisturbed[:STREAMS]

    def strike() -> None:
        victims = [member(shoal, "coordinator"), member(shoal, "engine-core", "engine-1")]
        for victim in victims:
            victim.kill()

    with running_shoal(SIM) as shoal:
        streams = run_streams(shoal, [stream.body for stream in expected], strike, 1.0)
        assert_undisturbed(streams, expected)
        assert resumed(shoal) >= STREAMS // 4, "the engine core had hardly anything"
        assert_back_and_idle(shoal, engines=2)


def test_an_engine_core_that_froze_and_lost_its_coordinator_is_killed_and_replaced(undisturbed: list[Stream]) -> None:
    expected = undisturbed[:8]

    def strike() -> None:
        frozen.suspend()
        member(shoal, "coordinator").kill()  # before it has missed the engine core, which the next one never meets

    with running_shoal(SIM) as shoal:
        frozen = member(shoal, "engine-core", "engine-0")
        streams = run_streams(shoal, [stream.body for stream in expected], strike, 0.5)
        assert_undisturbed(streams, expected)
        assert max(stream.longest_gap_s for stream in streams) < 2 * SILENCE_S, "resumed when the next one has settled"
        shoal.wait_for(lambda: not frozen.is_running(), 2 * ABSENT_AFTER_S, "it is left as it is")
        assert "engine-0 does nothing any more" in shoal.log
        assert_back_and_idle(shoal, engines=2)


def test_while_the_coordinator_is_frozen_streams_go_on_and_new_requests_wait(undisturbed: list[Stream]) -> None:
    expected = undisturbed[:8]
    answers: list[httpx.Response] = []

    def strike() -> None:
        coordinator = member(shoal, "coordinator")
        coordinator.suspend()
        threading.Timer(4.0, coordinator.resume).start()
        body = {"model": "sim", "prompt": "new", "max_tokens": 5}
        answers.append(httpx.post(f"{shoal.url}/v1/completions", json=body, timeout=30))

    with running_shoal(SIM) as shoal:
        streams = run_streams(shoal, [stream.body for stream in expected], strike, 0.5)
        assert_undisturbed(streams, expected)
        assert [answer.status_code for answer in answers] == [200]
        assert resumed(shoal) == 0
        assert_back_and_idle(shoal, engines=2)


def test_a_killed_api_server_leaves_nothing_in_the_engine_cores(undisturbed: list[Stream]) -> None:
    missed_after_s: list[float] = []

    def strike() -> None:
        victim = member(shoal, "api-server", "api-0")
        running = shoal.metric("shoal:num_requests_running")
        assert running > 32
        victim.kill()
        died_s = time.monotonic()
        told = "API server api-0"  # the coordinator's word, in the same moment in which engine cores are told
        shoal.wait_for(
            lambda: any(told in line and "lost:" in line for line in shoal.log.splitlines()), 5, "not missed"
        )
        missed_after_s.append(time.monotonic() - died_s)
        shoal.wait_for(lambda: shoal.log.count("connected to coordinator") == 3, 10, "it does not come back")
        shoal.wait_for(lambda: shoal.metric("shoal:num_requests_running") < running, 1, "its requests run on")

    with running_shoal(SIM) as shoal:
        streams = run_streams(shoal, [stream.body for stream in undisturbed], strike, 0.5)
        whole = [stream for stream in streams if stream.error is None]
        assert 0 < len(whole) < len(streams), "both API servers had streams"
        same = {stream.body["prompt"]: stream for stream in undisturbed}
        assert_undisturbed(whole, [same[stream.body["prompt"]] for stream in whole])
        (exit_line,) = [line for line in shoal.log.splitlines() if "lost: its process has exited" in line]
        assert "API server api-0" in exit_line, "by the supervisor's word, not by a missing heartbeat"
        print(f"missed after {missed_after_s[0] * 1_000:.0f} ms")
        assert missed_after_s[0] < 1.0, "0.1 s on a machine that does nothing else"
        assert_back_and_idle(shoal, engines=2)


def test_the_streams_of_an_api_server_that_was_frozen_go_on_where_they_were(undisturbed: list[Stream]) -> None:
    expected = undisturbed[:8]

    def strike() -> None:
        api_server = member(shoal, "api-server")
        api_server.suspend()
        frozen_s = time.monotonic()
        try:
            shoal.wait_for(lambda: "lost: not heard from" in shoal.log, 10, "the API server is not given up")
            assert time.monotonic() - frozen_s < SILENCE_S + 1.5, "3 s on a machine that does nothing else"
        finally:
            api_server.resume()

    slow = "sim:decode_ms=60,decode_ms_per_row=0"  # so that they have not ended when it is given up
    with running_shoal(slow, "--api-servers", "1") as shoal:
        streams = run_streams(shoal, [stream.body for stream in expected], strike, 0.5)
        assert_undisturbed(streams, expected)
        assert resumed(shoal, cause="request_lost") > 0
        assert_back_and_idle(shoal, engines=2)
