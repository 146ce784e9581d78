"""An engine core dies, fails, hangs, freezes or drains while streams run: no client sees it, no token differs."""

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import pytest
from chaos_cluster import SIM, STEP_S, assert_back_and_idle, member, resumed
from chaos_streams import Stream, assert_undisturbed, median_longest_gap_s, run_streams, tokens_of
from shoal_process import running_shoal

pytestmark = pytest.mark.cluster


def requests_of(streams: list[Stream]) -> list[dict[str, Any]]:
    return [stream.body for stream in streams]


def test_kill_9_of_one_of_four_engine_cores_is_not_noticed_by_64_streams(undisturbed: list[Stream]) -> None:
    with running_shoal(SIM, "--engines", "4") as shoal:
        streams = run_streams(shoal, requests_of(undisturbed), member(shoal, "engine-core", "engine-0").kill, 1.0)
        assert_undisturbed(streams, undisturbed)
        assert resumed(shoal, cause="engine_lost") >= 8, "the engine core had nothing"
        assert median_longest_gap_s(streams) <= STEP_S + 1.0
        assert_back_and_idle(shoal, engines=4)


def test_with_all_engine_cores_dead_requests_wait_for_the_restart(undisturbed: list[Stream]) -> None:
    expected = undisturbed[:16]

    def strike() -> None:
        for engine_core in shoal.children("engine-core"):
            engine_core.kill()
        shoal.wait_for(lambda: not shoal.is_ready(), 2, "it says that it is ready")

    with running_shoal(SIM) as shoal:
        streams = run_streams(shoal, requests_of(expected), strike, 1.0)
        assert_undisturbed(streams, expected)
        assert resumed(shoal, cause="engine_lost") >= 16
        assert_back_and_idle(shoal, engines=2)


def test_a_step_that_raises_again_and_again_is_not_noticed(undisturbed: list[Stream]) -> None:
    expected = undisturbed[:16]
    with running_shoal(f"{SIM},fail_at_step=80") as shoal:
        streams = run_streams(shoal, requests_of(expected))
        assert_undisturbed(streams, expected)
        assert resumed(shoal, cause="engine_lost") >= 16
        assert "step 80 fails, as asked" in shoal.log


def test_a_step_that_hangs_ends_its_engine_core(undisturbed: list[Stream]) -> None:
    expected = undisturbed[:8]
    with running_shoal(f"{SIM},hang_at_step=60", "--step-timeout-s", "1") as shoal:
        streams = run_streams(shoal, requests_of(expected))
        assert_undisturbed(streams, expected)
        assert "no step has ended for" in shoal.log
        assert "ended with exit code 1" in shoal.log


def test_a_frozen_engine_core_is_ejected_killed_and_replaced(undisturbed: list[Stream]) -> None:
    expected = undisturbed[:16]
    with running_shoal(SIM) as shoal:
        frozen = member(shoal, "engine-core", "engine-0")
        streams = run_streams(shoal, requests_of(expected), frozen.suspend, 1.0)
        assert_undisturbed(streams, expected)
        assert resumed(shoal, cause="engine_lost") > 0
        assert max(stream.longest_gap_s for stream in streams) < 4.5
        assert_back_and_idle(shoal, engines=2)
        assert not frozen.is_running()
        assert "engine-0 does nothing any more" in shoal.log


def test_a_drained_engine_core_hands_over_what_it_has_not_finished(undisturbed: list[Stream]) -> None:
    expected = undisturbed[:16]
    with running_shoal(SIM, "--drain-timeout-s", "0.5") as shoal:
        streams = run_streams(shoal, requests_of(expected), member(shoal, "engine-core", "engine-0").terminate, 1.0)
        assert_undisturbed(streams, expected)
        assert resumed(shoal, cause="engine_drained") > 0
        assert "engine-0 ended with exit code 0" in shoal.log
        assert_back_and_idle(shoal, engines=2)


def test_plain_answers_with_several_choices_are_not_disturbed_either(undisturbed: list[Stream]) -> None:
    body = undisturbed[0].body | {"stream": False, "stream_options": None, "n": 4, "temperature": 1.0}

    def answer() -> dict[str, object]:
        whole = httpx.post(f"{shoal.url}/v1/completions", json=body, timeout=60).raise_for_status().json()
        return {"choices": whole["choices"], "tokens": tokens_of(whole["usage"])}

    with running_shoal(SIM) as shoal, ThreadPoolExecutor(1) as pool:
        expected = answer()
        disturbed = pool.submit(answer)
        shoal.wait_for(lambda: shoal.metric("shoal:num_requests_running") == 4, 5, "it does not run")
        member(shoal, "engine-core", "engine-1").kill()
        assert disturbed.result(30) == expected
        assert resumed(shoal) > 0


def test_a_request_that_engine_cores_die_of_fails_alone(undisturbed: list[Stream]) -> None:
    expected = undisturbed[:16]
    refusals: list[httpx.Response] = []

    def send_poison() -> None:
        body = {"model": "sim", "prompt": [1, 2, 255, 3], "max_tokens": 5}
        refusals.append(httpx.post(f"{shoal.url}/v1/completions", json=body, timeout=60))

    with running_shoal(f"{SIM},poison_token=255", "--engines", "3") as shoal:
        streams = run_streams(shoal, requests_of(expected), send_poison, 0.5)
        assert_undisturbed(streams, expected)
        (refusal,) = refusals
        assert refusal.status_code == 500
        assert "was running when 3 engine cores died" in refusal.json()["error"]["message"]
        assert shoal.log.count("ended with exit code 1") == 3, "no more engine cores than it takes"
        assert_back_and_idle(shoal, engines=3)
