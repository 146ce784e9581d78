"""Options of an engine core, declared once: flags, environment variables and TOML keys come from here."""

from typing import Annotated

import msgspec
from msgspec import Meta

from protocol.logs import LogFormat, LogLevel


class EngineCoreConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """`shoal engine-core`."""

    engines_address: Annotated[str, Meta(description="ZeroMQ address of the coordinator's engines socket")]
    model: Annotated[str, Meta(description="MLX model folder, or sim:... for a simulated device")]
    name: Annotated[str, Meta(description="name of this engine core, unique in the cluster")] = "engine-0"
    served_model_name: Annotated[str | None, Meta(description="model name in the API; default: the folder's name")] = (
        None
    )
    max_model_len: Annotated[
        Annotated[int, Meta(ge=2)] | None,
        Meta(description="most tokens of prompt and output; default: what the model supports"),
    ] = None
    max_num_seqs: Annotated[int, Meta(ge=1, le=1024, description="requests in the batch at once")] = 64
    max_num_batched_tokens: Annotated[
        int, Meta(ge=1, description="token budget of one step: decodes first, then prefill chunks")
    ] = 512
    kv_cache_memory_bytes: Annotated[
        Annotated[int, Meta(ge=1)] | None,
        Meta(
            description="memory for the KV cache; default: what weights and steps leave of 60 % of the device's memory"
        ),
    ] = None
    memory_share: Annotated[
        float, Meta(gt=0, le=1, description="share of the device's memory that this engine core may count on")
    ] = 1.0
    async_scheduling: Annotated[
        bool | None,
        Meta(description="plan a step while the one before it runs; default: where the device gains by it"),
    ] = None
    prefix_caching: Annotated[
        bool, Meta(description="keep what was computed, as far as memory allows, for prompts that begin alike")
    ] = True
    ssd_cache_dir: Annotated[
        str | None,
        Meta(
            description="folder for prefixes beyond RAM and over restarts; engine cores may share it; it holds prompts"
        ),
    ] = None
    ssd_cache_bytes: Annotated[int, Meta(ge=1, description="bound of the whole folder ssd_cache_dir")] = 16 * 2**30
    step_timeout_s: Annotated[
        float,
        Meta(
            gt=0, description="an engine core whose step takes longer ends itself; the first 8 may take 5 times as long"
        ),
    ] = 120.0
    secret_key_file: Annotated[
        str | None, Meta(description="file with this machine's secret key, made by shoal keys; encrypts TCP links")
    ] = None
    coordinator_key: Annotated[
        str | None, Meta(description="public key of the coordinator's machine, when it is joined over TCP")
    ] = None
    drain_timeout_s: Annotated[
        float, Meta(ge=0, description="after SIGTERM, seconds for running requests to finish")
    ] = 30.0
    log_level: Annotated[LogLevel, Meta(description="least severe log lines to write")] = "info"
    log_format: Annotated[LogFormat, Meta(description="log lines as text or JSON")] = "text"
