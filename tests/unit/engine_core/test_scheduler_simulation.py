"""What the simulation shows, and that it can be believed."""

from statistics import median

import pytest

from engine_core.device import DecodeRow, PrefillChunk, StepPlan
from engine_core.scheduler_simulation import (
    ALL_AT_ONCE,
    FIXED,
    POLICIES,
    TIMED,
    CostModel,
    Policy,
    TokenTimes,
    percentile,
    simulate,
    table,
    tokens_per_s,
)
from engine_core.simulated_workloads import Workload, burst, closed_loop, flood, join, mixed, workloads


def ttfts(workload: Workload, policy: Policy, group: str) -> list[float]:
    return [times.ttft_s for times in simulate(workload, policy) if times.request.group == group]


def gaps(workload: Workload, policy: Policy, group: str) -> list[float]:
    return [gap for times in simulate(workload, policy) if times.request.group == group for gap in times.gaps_s]


def test_a_step_costs_what_the_model_says() -> None:
    cost = CostModel(
        step_ms=10, chunk_ms=5, decode_ms_per_row=1, prefill_ms_per_token=2, attention_us=100, prefill_attention_us=50
    )
    decodes = [DecodeRow(0, 100, 1, 0), DecodeRow(1, 50, 1, 0)]
    assert cost.step_s(StepPlan(decodes=decodes)) == pytest.approx(0.010 + 0.002 + 150 * 100e-6)
    chunk = PrefillChunk(2, 100, [1] * 10)
    alone_s = 0.010 + 0.005 + 10 * 0.002 + 10 * 105 * 50e-6
    assert cost.step_s(StepPlan(prefills=[chunk])) == pytest.approx(alone_s)
    both = StepPlan(prefills=[chunk], decodes=decodes)
    assert cost.step_s(both) == pytest.approx(alone_s + 0.002 + 150 * 100e-6), "in one forward"
    assert cost.step_s(StepPlan()) == 0


@pytest.mark.parametrize("policy", POLICIES, ids=lambda policy: policy.name)
def test_every_request_gets_all_its_tokens_in_time_order(policy: Policy) -> None:
    for workload in workloads():
        for times in simulate(workload, policy):
            assert len(times.at_s) == times.request.output_tokens
            assert times.at_s == sorted(times.at_s)
            assert times.ttft_s > 0


def test_two_runs_show_the_same() -> None:
    first, second = (simulate(mixed(), TIMED) for _ in range(2))
    assert [times.at_s for times in first] == [times.at_s for times in second]


def test_the_table_has_a_line_for_each_policy_and_group_of_requests_of_each_workload() -> None:
    groups = sum(len({request.group for request in workload.requests}) for workload in workloads())
    assert len(table()) == 1 + len(POLICIES) * groups


def test_eight_long_prompts_get_their_first_tokens_one_after_another_and_in_the_mean_much_earlier() -> None:
    timed = ttfts(burst(), TIMED, "long")
    assert percentile(ttfts(burst(), ALL_AT_ONCE, "long"), 50) >= 1.6 * percentile(timed, 50)
    steps = [after - before for before, after in zip([0.0, *timed], timed, strict=False)]
    assert min(steps) > 0.4 * max(steps)


def test_a_long_prompt_that_joins_16_streams_lets_no_gap_be_longer_than_three_steps() -> None:
    def worst(policy: Policy) -> float:
        streams = [times for times in simulate(join(), policy) if times.request.group == "stream"]
        settled = [gap for times in streams for gap in _gaps_from(times, join().requests[-1].arrival_s)]
        return max(settled) / median(settled)

    assert worst(TIMED) < 3
    assert worst(FIXED) > 10
    assert worst(ALL_AT_ONCE) > 30


def _gaps_from(times: TokenTimes, start_s: float) -> list[float]:
    return [gap for gap, at_s in zip(times.gaps_s, times.at_s, strict=False) if at_s >= start_s]


def test_short_prompts_do_not_wait_for_long_ones() -> None:
    assert percentile(ttfts(mixed(), TIMED, "short"), 95) < 0.5 * percentile(ttfts(mixed(), FIXED, "short"), 95)
    assert percentile(gaps(mixed(), TIMED, "short"), 99) < 0.5 * percentile(gaps(mixed(), FIXED, "short"), 99)


def test_a_client_that_floods_does_not_push_back_another() -> None:
    assert max(ttfts(flood(), TIMED, "other")) < 0.1 * max(ttfts(flood(), TIMED, "flood"))
    assert max(ttfts(flood(), TIMED, "other")) < 0.2 * max(ttfts(flood(), ALL_AT_ONCE, "other"))


@pytest.mark.parametrize("clients", [8, 32])
def test_streams_that_come_and_go_do_not_stall_and_give_as_many_tokens(clients: int) -> None:
    timed, at_once = (simulate(closed_loop(clients), policy) for policy in (TIMED, ALL_AT_ONCE))
    context = 64 + 48
    decode_s = CostModel().step_s(StepPlan(decodes=[DecodeRow(row, context, 1, 0) for row in range(clients)]))
    gaps_of_all = [gap for times in timed for gap in times.gaps_s]
    assert percentile(gaps_of_all, 99) < 2.3 * decode_s
    assert max(gaps_of_all) < 3 * decode_s
    assert tokens_per_s(timed) > 0.93 * tokens_per_s(at_once)


def test_in_a_closed_loop_a_request_comes_when_the_one_before_has_ended() -> None:
    times = simulate(closed_loop(8, requests_each=2), TIMED)
    assert [after.arrival_s for after in times[8:]] == [before.at_s[-1] for before in times[:8]]


def test_percentiles_are_values_that_occurred() -> None:
    values = [4.0, 1.0, 3.0, 2.0]
    assert [percentile(values, percent) for percent in (0, 25, 50, 75, 99, 100)] == [1, 1, 2, 3, 4, 4]
