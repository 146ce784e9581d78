import itertools
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.answer import Failure, FailureKind
from benchmarks.record import RequestRecord
from benchmarks.summary import ServiceLevel, distribution, percentile, summarise


def record(index: int = 0, **fields: Any) -> RequestRecord:
    """Four tokens at 1.0, 1.1, 1.3 and 1.6 s, whole at 1.7 s; started at 0.5 s."""
    known = {
        "scheduled_s": 0.5,
        "sent_s": 0.5,
        "ended_s": 1.7,
        "content_times_s": [1.0, 1.1, 1.3, 1.6],
        "has_content": True,
        "prompt_tokens": 10,
        "usage_output_tokens": 4,
    }
    return RequestRecord(index=index, **(known | fields))


FAILED = Failure(FailureKind.HTTP, "too many", 429)


def test_percentiles_interpolate_between_neighbours() -> None:
    assert percentile([1.0, 2.0, 3.0, 4.0], 0.5) == 2.5
    assert percentile([1.0, 2.0, 3.0, 4.0], 0.99) == pytest.approx(3.97)
    assert percentile([7.0], 0.99) == 7.0
    assert percentile([1.0, 2.0], 1.0) == 2.0


@given(st.lists(st.floats(0, 1e3), min_size=1))
def test_percentiles_are_ordered_and_within_the_values(durations_s: list[float]) -> None:
    found = distribution(durations_s)
    assert found is not None
    steps = [min(durations_s) * 1e3, found.p50, found.p90, found.p95, found.p99, found.max]
    assert all(earlier <= later * (1 + 1e-12) for earlier, later in itertools.pairwise(steps))
    assert found.max == max(durations_s) * 1e3
    assert found.count == len(durations_s)


def test_latencies_of_one_request() -> None:
    one = record()
    assert one.ttft_s == 0.5
    assert one.itls_s == pytest.approx([0.1, 0.2, 0.3])
    assert one.time_per_token_s == pytest.approx(0.2)
    assert one.e2e_s == pytest.approx(1.2)


def test_time_per_token_counts_tokens_not_events() -> None:
    assert record(usage_output_tokens=7).time_per_token_s == pytest.approx(0.1)
    assert record(content_times_s=[1.0], usage_output_tokens=7).time_per_token_s is None
    assert record(usage_output_tokens=1).time_per_token_s is None


def test_latency_counts_from_the_scheduled_start() -> None:
    late = record(scheduled_s=0.1, sent_s=0.9)
    assert late.ttft_s == pytest.approx(0.9)
    assert late.e2e_s == pytest.approx(1.6)


def test_rates_count_successes_over_the_whole_run() -> None:
    run = summarise(
        [record(0), record(1, ended_s=4.0), record(2, ended_s=2.0, failure=FAILED)],
        ServiceLevel(),
        cpu_s=1.0,
        open_loop=False,
    )
    assert (run.requests, run.succeeded, run.failed, run.wall_s) == (3, 2, 1, 4.0)
    assert run.output_tokens_per_s == 2.0
    assert run.requests_per_s == 0.5
    assert run.client.cpu_share == 0.25
    assert run.client.start_lag_ms_p99 is None
    assert run.prompt_tokens == 20
    assert run.cached_tokens is None
    assert run.e2e_ms is not None
    assert run.e2e_ms.count == 2


def test_inter_token_latencies_of_all_requests_go_into_one_distribution() -> None:
    run = summarise([record(0), record(1)], ServiceLevel(), cpu_s=0.0, open_loop=False)
    assert run.itl_ms is not None
    assert (run.itl_ms.count, run.itl_ms.mean) == (6, pytest.approx(200.0))
    assert run.time_per_token_ms is not None
    assert run.time_per_token_ms.count == 2


def test_failures_are_counted_by_kind_with_an_example() -> None:
    broken = Failure(FailureKind.TIMEOUT, "60 s")
    records = [record(failure=FAILED), record(failure=Failure(FailureKind.HTTP, "later", 429)), record(failure=broken)]
    run = summarise(records, ServiceLevel(), cpu_s=0.0, open_loop=False)
    assert run.errors == {"http_429": 2, "timeout": 1}
    assert run.error_examples == {"http_429": "too many", "timeout": "60 s"}
    assert run.output_tokens == 0
    assert run.ttft_ms is None


@pytest.mark.parametrize(
    ("records", "source", "tokens"),
    [
        ([record()], "usage", 4),
        ([record(usage_output_tokens=None)], "events", 4),
        ([record(), record(usage_output_tokens=None)], "mixed", 8),
        ([record(usage_output_tokens=None, content_times_s=[])], "none", 0),
        ([], "none", 0),
    ],
)
def test_the_source_of_token_counts_is_told(records: list[RequestRecord], source: str, tokens: int) -> None:
    run = summarise(records, ServiceLevel(), cpu_s=0.0, open_loop=False)
    assert (run.output_tokens_from, run.output_tokens) == (source, tokens)


def test_empty_answers_are_counted() -> None:
    run = summarise(
        [record(), record(has_content=False, content_times_s=[])], ServiceLevel(), cpu_s=0.0, open_loop=False
    )
    assert (run.empty, run.failed) == (1, 0)


def test_start_lag_of_an_open_loop() -> None:
    run = summarise([record(sent_s=0.53)], ServiceLevel(), cpu_s=0.0, open_loop=True)
    assert run.client.start_lag_ms_p99 == pytest.approx(30.0)


@pytest.mark.parametrize(
    ("level", "met"),
    [
        (ServiceLevel(ttft_ms=501), True),
        (ServiceLevel(ttft_ms=499), False),
        (ServiceLevel(itl_ms=201), True),
        (ServiceLevel(itl_ms=199), False),
        (ServiceLevel(e2e_ms=1201), True),
        (ServiceLevel(e2e_ms=1199), False),
        (ServiceLevel(501, 201, 1199), False),
    ],
)
def test_each_limit_of_a_service_level_counts(level: ServiceLevel, met: bool) -> None:
    assert level.is_met_by(record()) is met


def test_failed_and_token_less_requests_do_not_meet_a_service_level() -> None:
    assert not ServiceLevel(e2e_ms=1e9).is_met_by(record(failure=FAILED))
    assert not ServiceLevel(ttft_ms=1e9).is_met_by(record(content_times_s=[]))
    assert ServiceLevel(itl_ms=1.0).is_met_by(record(content_times_s=[1.0], usage_output_tokens=1))


def test_goodput_is_a_share_of_all_requests_and_a_rate() -> None:
    records = [record(0), record(1, content_times_s=[1.4]), record(2, failure=FAILED), record(3, ended_s=2.0)]
    goodput = summarise(records, ServiceLevel(ttft_ms=600), cpu_s=0.0, open_loop=False).goodput
    assert goodput is not None
    assert (goodput.requests, goodput.share, goodput.requests_per_s) == (2, 0.5, 1.0)


def test_without_a_service_level_there_is_no_goodput() -> None:
    assert summarise([record()], ServiceLevel(), cpu_s=0.0, open_loop=False).goodput is None
