"""What a reader should know before trusting a result."""

from collections.abc import Iterator

from benchmarks.config import ServeBenchConfig
from benchmarks.report import LoadResult
from benchmarks.schedule import OpenLoop
from benchmarks.summary import RunSummary

BUSY_CLIENT_CPU_SHARE = 0.7
"""Above this the client's own queueing shows in the latencies of a single thread."""
LATE_START_MS = 20.0
"""Of the p99 of starts against the schedule."""
CACHED_SHARE = 0.2
"""Of the prompt tokens, besides those that prompts share: the chat template's and the shared prefix."""
LENGTH_TOLERANCE = 0.1


def notes_on(result: LoadResult, config: ServeBenchConfig, template_tokens: float) -> list[str]:
    """Notes on one result, each at most once however many runs show it.

    `template_tokens` is what the server's chat template adds to a prompt.
    """
    found: dict[str, None] = {}
    for run in result.runs:
        prompt_notes = _prompt_notes(run, config, template_tokens)
        for note in (*_client_notes(run, result), *_answer_notes(run, config), *prompt_notes):
            found.setdefault(f"{result.server}, {result.load}: {note}")
    return list(found)


def _client_notes(run: RunSummary, result: LoadResult) -> Iterator[str]:
    if run.client.cpu_share > BUSY_CLIENT_CPU_SHARE:
        yield "the load generator was short of CPU: its latencies are too high (measure from another machine)"
    lag_ms = run.client.start_lag_ms_p99
    if isinstance(result.load, OpenLoop) and lag_ms is not None and lag_ms > LATE_START_MS:
        yield "requests started late (the limit of requests in flight, or a busy client); the delay counts as latency"


def _answer_notes(run: RunSummary, config: ServeBenchConfig) -> Iterator[str]:
    if run.output_tokens_from in ("events", "mixed"):
        yield "the server gave no token usage: output tokens are counted as events and may be too few"
    if run.output_tokens_from == "none" and run.succeeded:
        yield "no output tokens could be counted"
    if run.empty:
        yield "some answers were whole but had no content"
    if not run.succeeded:
        return
    tokens_per_answer = run.output_tokens / run.succeeded
    full_length = config.max_tokens * (1 - LENGTH_TOLERANCE)
    if config.ignore_eos and config.prompts is None and tokens_per_answer < full_length:
        yield "answers are shorter than --max-tokens: the server does not honour ignore_eos"
    if config.min_tokens is not None and tokens_per_answer < config.min_tokens:
        yield "answers are shorter than --min-tokens: the server does not honour min_tokens"


def _prompt_notes(run: RunSummary, config: ServeBenchConfig, template_tokens: float) -> Iterator[str]:
    if run.prompt_tokens is None or config.prompts is not None or not run.succeeded:
        return
    mean_tokens = run.prompt_tokens / run.succeeded
    if abs(mean_tokens - config.prompt_tokens) > max(2.0, config.prompt_tokens * LENGTH_TOLERANCE):
        yield "prompts are not as long as --prompt-tokens asks"
    expected_tokens = template_tokens + config.shared_prefix_tokens
    if (run.cached_tokens or 0) / run.succeeded > expected_tokens + mean_tokens * CACHED_SHARE:
        yield "prompts were found in the server's cache: use another --seed than in earlier measurements"
