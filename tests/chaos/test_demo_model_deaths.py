"""A real model: streams whose engine core is killed have the text that they would have had."""

import time

import pytest
from chaos_cluster import assert_back_and_idle, member, resumed
from chaos_streams import assert_undisturbed, bodies, run_streams
from shoal_process import running_shoal

pytestmark = [pytest.mark.cluster, pytest.mark.model]

MODEL = "SmolLM2-135M-Instruct"
STREAMS = 3
MAX_TOKENS = 32


def test_kill_9_in_mid_stream_changes_no_text() -> None:
    requests = [
        body | {"frequency_penalty": 0.3, "repetition_penalty": 1.1, "min_tokens": MAX_TOKENS // 2}
        for body in bodies(STREAMS, MAX_TOKENS, model=MODEL)
    ]
    with running_shoal() as shoal:
        expected = run_streams(shoal, requests)
        assert_undisturbed(expected, expected)

        def strike() -> None:
            began = shoal.metric("shoal:generation_tokens_total")
            deadline_s = time.monotonic() + 30
            while shoal.metric("shoal:generation_tokens_total") < began + STREAMS * MAX_TOKENS // 4:
                assert time.monotonic() < deadline_s
            member(shoal, "engine-core", "engine-0").kill()

        streams = run_streams(shoal, requests, strike)
        assert resumed(shoal, cause="engine_lost") > 0
        assert_undisturbed(streams, expected)
        assert_back_and_idle(shoal, engines=2)
