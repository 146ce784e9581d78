from pathlib import Path
from typing import Any

import pytest
from scripted_server import Script, ScriptedServer, good_stream, json_answer, usage_of, whole_answer, word_count

from benchmarks.client import EndpointError
from benchmarks.config import ServeBenchConfig
from benchmarks.schedule import ClosedLoop, OpenLoop
from benchmarks.session import Measurement, load_patterns, measure


def model_server(body: dict[str, Any]) -> Script:
    """Two tokens a word and 30 for the template; says as many tokens as it is asked for."""
    prompt_tokens = 30 + 2 * word_count(body)
    if not body["stream"]:
        return whole_answer(prompt_tokens)
    return good_stream(body["max_tokens"], 0.02, 0.0, usage_of(prompt_tokens, body["max_tokens"]))


async def measure_scripted(server: ScriptedServer, **options: Any) -> Measurement:
    known: dict[str, Any] = {"url": server.url, "max_tokens": 3, "requests": 6, "concurrency": (2,)}
    return await measure(ServeBenchConfig(**(known | options)), lambda line: None)


async def test_a_measurement_counts_what_the_server_did() -> None:
    async with ScriptedServer(model_server) as server:
        measurement = await measure_scripted(server, runs=2, warmup=3, slo_ttft_ms=500.0, slo_e2e_ms=0.001)
    (result,) = measurement.report.results
    assert (result.model, result.load, len(result.runs)) == ("scripted", ClosedLoop(2), 2)
    for run in result.runs:
        assert (run.requests, run.succeeded, run.output_tokens, run.output_tokens_from) == (6, 6, 18, "usage")
        assert run.ttft_ms is not None
        assert run.ttft_ms.p50 >= 20
        assert run.goodput is not None
        assert run.goodput.requests == 0
        assert run.client.cpu_share > 0
    assert len(measurement.records) == 12
    assert len(server.bodies) == 2 + 3 + 12
    assert measurement.report.notes == []


async def test_prompts_get_the_asked_length_without_a_tokenizer() -> None:
    async with ScriptedServer(model_server) as server:
        measurement = await measure_scripted(server, prompt_tokens=200, shared_prefix_tokens=100)
    assert measurement.report.calibration is not None
    assert measurement.report.calibration.tokens_per_word == 2.0
    assert measurement.report.calibration.overhead_tokens == 30.0
    assert {30 + 2 * word_count(body) for body in server.bodies[2:]} == {200}
    assert {len(body["messages"][0]["content"].split()) for body in server.bodies[2:]} == {50}


async def test_no_prompt_is_sent_twice() -> None:
    async with ScriptedServer(model_server) as server:
        await measure_scripted(server, runs=2, concurrency=(1, 2))
    texts = [body["messages"][-1]["content"] for body in server.bodies[2:]]
    assert len(set(texts)) == len(texts) == 2 * (2 + 12)


async def test_two_servers_are_measured_in_turns_with_prompts_of_their_own() -> None:
    order: list[str] = []

    def named(name: str) -> ScriptedServer:
        def behaviour(body: dict[str, Any]) -> Script:
            order.append(name)
            return model_server(body)

        return ScriptedServer(behaviour)

    async with named("A") as a, named("B") as b:
        options = {"compare": b.url, "runs": 2, "warmup": 0, "requests": 2, "calibrate": False}
        measurement = await measure_scripted(a, **options)
    assert order == ["A", "A", "B", "B", "A", "A", "B", "B"]
    texts = [body["messages"][0]["content"] for body in a.bodies + b.bodies]
    assert len(set(texts)) == 8
    assert {len(text.split()) for text in texts} == {128}
    (comparison,) = measurement.report.comparisons
    assert comparison.figures[0].name == "output_tokens_per_s"


async def test_the_second_server_may_call_its_model_otherwise() -> None:
    async with ScriptedServer(model_server) as a, ScriptedServer(model_server) as b:
        options = {"compare": b.url, "model": "one", "compare_model": "other", "requests": 1, "warmup": 0}
        measurement = await measure_scripted(a, **options)
    assert {body["model"] for body in a.bodies} == {"one"}
    assert {body["model"] for body in b.bodies} == {"other"}
    assert [result.model for result in measurement.report.results] == ["one", "other"]


async def test_failures_and_failed_warm_up_are_reported() -> None:
    async with ScriptedServer(lambda body: json_answer({}, status=503)) as server:
        measurement = await measure_scripted(server, calibrate=False)
    assert measurement.report.results[0].runs[0].errors == {"http_503": 6}
    assert measurement.report.failed == 6
    assert any("warm-up" in note for note in measurement.report.notes)


async def test_an_open_loop_counts_queueing_in_the_client() -> None:
    async with ScriptedServer(model_server) as server:
        measurement = await measure_scripted(
            server, concurrency=(), rate=(1000.0,), arrivals="constant", max_in_flight=1, warmup=0
        )
    (result,) = measurement.report.results
    run = result.runs[0]
    assert server.most_in_flight == 1
    assert run.e2e_ms is not None
    assert run.e2e_ms.max >= 6 * 20 - 5
    assert any("started late" in note for note in measurement.report.notes)


async def test_prompts_come_from_a_file(tmp_path: Path) -> None:
    prompts = tmp_path / "prompts.jsonl"
    prompts.write_text('{"prompt": "one"}\n{"messages": [{"role": "user", "content": "two"}], "max_tokens": 1}\n')
    async with ScriptedServer(model_server) as server:
        measurement = await measure_scripted(server, prompts=str(prompts), requests=2, warmup=0, concurrency=(1,))
    assert measurement.report.calibration is None
    said = [(body["messages"][0]["content"], body["max_tokens"]) for body in server.bodies]
    assert said == [("one", 3), ("two", 1)]


async def test_a_bad_prompts_file_is_named_with_its_line(tmp_path: Path) -> None:
    prompts = tmp_path / "prompts.jsonl"
    prompts.write_text('{"prompt": "one"}\nno JSON\n')
    async with ScriptedServer(model_server) as server:
        with pytest.raises(ValueError, match=r"prompts\.jsonl: line 2"):
            await measure_scripted(server, prompts=str(prompts), requests=2, warmup=0, concurrency=(1,))


async def test_the_named_model_and_api_are_used(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("A_KEY", "k")
    options = {"model": "other", "api": "completions", "stream": False, "api_key_env": "A_KEY", "warmup": 0}
    async with ScriptedServer(model_server) as server:
        measurement = await measure_scripted(server, **options)
    assert all(body["model"] == "other" and "prompt" in body for body in server.bodies)
    assert all("Bearer k" in head for head in server.headers)
    run = measurement.report.results[0].runs[0]
    assert (run.ttft_ms, run.succeeded) == (None, 6)


async def test_a_server_that_counts_no_tokens_needs_no_calibrate() -> None:
    choice = {"index": 0, "message": {"content": "a"}, "finish_reason": "stop"}
    async with ScriptedServer(lambda body: json_answer({"choices": [choice]})) as server:
        with pytest.raises(EndpointError, match="--no-calibrate"):
            await measure_scripted(server)


def test_loads_come_from_the_options() -> None:
    assert load_patterns(ServeBenchConfig()) == [ClosedLoop(8)]
    assert load_patterns(ServeBenchConfig(concurrency=(1, 4))) == [ClosedLoop(1), ClosedLoop(4)]
    assert load_patterns(ServeBenchConfig(rate=(2.0,), max_in_flight=5)) == [OpenLoop(2.0, "poisson", 5)]


async def test_a_duration_alone_sets_no_limit_of_requests() -> None:
    async with ScriptedServer(lambda body: good_stream(1, usage=usage_of(5, 1))) as server:
        measurement = await measure_scripted(server, requests=None, duration_s=0.5, calibrate=False, warmup=0)
    run = measurement.report.results[0].runs[0]
    assert run.requests > 64
    assert run.wall_s >= 0.4
