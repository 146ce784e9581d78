"""Options of `shoal bench serve`, declared once: the command-line flags come from here."""

from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from benchmarks.schedule import Arrivals

Count = Annotated[int, Meta(ge=1)]
Positive = Annotated[float, Meta(gt=0)]


class ServeBenchConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """`shoal bench serve`. Raises ValueError (msgspec.ValidationError in a conversion) for options that conflict."""

    url: Annotated[str, Meta(description="server to measure, with or without /v1")] = "http://127.0.0.1:8000"
    compare: Annotated[
        str | None, Meta(description="second server: both are measured in turns and ratios are given")
    ] = None
    api: Annotated[Literal["chat", "completions"], Meta(description="chat completions or plain completions")] = "chat"
    model: Annotated[str | None, Meta(description="model to ask for; default: the first that the server lists")] = None
    compare_model: Annotated[
        str | None, Meta(description="model at the second server; default: as --model, or the first that it lists")
    ] = None
    api_key_env: Annotated[str, Meta(description="environment variable that holds the API key, if one is needed")] = (
        "BENCH_API_KEY"
    )
    stream: Annotated[bool, Meta(description="ask for streams; without, only E2E is measured")] = True

    concurrency: Annotated[
        tuple[Count, ...],
        Meta(description="closed loop: requests kept in flight; several (1,8,32) are measured one after the other"),
    ] = ()
    rate: Annotated[
        tuple[Positive, ...],
        Meta(description="open loop: requests started per second, whatever the server does; several as above"),
    ] = ()
    arrivals: Annotated[Arrivals, Meta(description="open loop: random (Poisson) or even gaps between starts")] = (
        "poisson"
    )
    max_in_flight: Annotated[
        int, Meta(ge=1, description="open loop: beyond this many, requests wait in the client (and the wait counts)")
    ] = 1024
    requests: Annotated[
        Count | None, Meta(description="requests in a run; default: 64, or as many as fit in --duration-s")
    ] = None
    duration_s: Annotated[
        Positive | None, Meta(description="no request is due later than this in a run; those under way finish")
    ] = None
    runs: Annotated[int, Meta(ge=1, description="runs of each load; medians over runs are reported")] = 1
    warmup: Annotated[int, Meta(ge=0, description="requests before the first run of each load, not counted")] = 2
    timeout_s: Annotated[float, Meta(gt=0, description="a request that takes longer is cut off and has failed")] = 600.0
    keep_alive: Annotated[bool, Meta(description="reuse connections instead of a new one for each request")] = False

    prompt_tokens: Annotated[int, Meta(ge=1, description="length of the synthetic prompts")] = 128
    shared_prefix_tokens: Annotated[
        int, Meta(ge=0, description="how many of them all prompts of a run begin with; the rest is distinct")
    ] = 0
    calibrate: Annotated[
        bool, Meta(description="ask the server twice how many tokens a prompt has; without, a word counts as a token")
    ] = True
    prompts: Annotated[
        str | None, Meta(description="JSONL file of prompts instead: messages or prompt, and max_tokens, a line")
    ] = None
    max_tokens: Annotated[int, Meta(ge=1, description="most tokens of an answer")] = 128
    min_tokens: Annotated[Count | None, Meta(description="fewest tokens of an answer (a server may not know it)")] = (
        None
    )
    ignore_eos: Annotated[bool, Meta(description="have answers go on to max_tokens (a server may not know it)")] = False
    temperature: Annotated[float, Meta(ge=0, description="sampling temperature")] = 0.0
    extra_body: Annotated[str | None, Meta(description="JSON object merged into each request body")] = None
    seed: Annotated[int, Meta(description="fixes the synthetic prompts and the arrival times")] = 0

    slo_ttft_ms: Annotated[Positive | None, Meta(description="goodput: limit of the time to first token")] = None
    slo_itl_ms: Annotated[
        Positive | None, Meta(description="goodput: limit of a request's mean time per token after the first")
    ] = None
    slo_e2e_ms: Annotated[Positive | None, Meta(description="goodput: limit of the whole request")] = None

    json: Annotated[str | None, Meta(description="file for the report as JSON")] = None
    records: Annotated[str | None, Meta(description="file for one JSON line per measured request")] = None
    allow_errors: Annotated[bool, Meta(description="exit with 0 although requests failed")] = False

    def __post_init__(self) -> None:
        for flag, url in (("--url", self.url), ("--compare", self.compare)):
            if url is not None and not url.startswith(("http://", "https://")):
                raise ValueError(f"{flag} must begin with http:// or https:// (got {url})")
        if self.concurrency and self.rate:
            raise ValueError("--concurrency (closed loop) and --rate (open loop) exclude each other")
        if self.compare_model is not None and self.compare is None:
            raise ValueError("--compare-model needs --compare")
        if self.shared_prefix_tokens >= self.prompt_tokens:
            raise ValueError("--shared-prefix-tokens must be less than --prompt-tokens")
        if self.min_tokens is not None and self.min_tokens > self.max_tokens:
            raise ValueError("--min-tokens must not be more than --max-tokens")
        if not self.stream and (self.slo_ttft_ms or self.slo_itl_ms):
            raise ValueError("--slo-ttft-ms and --slo-itl-ms need streams: they cannot be used with --no-stream")
