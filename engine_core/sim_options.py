"""`--model sim:key=value,...`: how a simulated device behaves."""

from typing import Annotated

import msgspec
from msgspec import Meta

from engine_core.device import ModelRefused

SIM_PREFIX = "sim:"

Milliseconds = Annotated[float, Meta(ge=0, le=3_600_000)]
Seconds = Annotated[float, Meta(ge=0, le=3_600)]
StepNumber = Annotated[int, Meta(ge=1)]


class SimOptions(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The keys, with their defaults. Steps are numbered from 1; those that compute nothing are not counted."""

    prefill_ms_per_token: Milliseconds = 0.05
    restore_ms_per_token: Milliseconds = 0.0005
    """To restore a stored prefix, or to store one; on MLX about 0.6 % of computing it."""
    decode_ms: Milliseconds = 10.0
    """Per step with decode rows, whatever their number."""
    decode_ms_per_row: Milliseconds = 0.1
    load_s: Seconds = 0.0
    max_model_len: Annotated[int, Meta(ge=2)] = 8_192
    vocab_size: Annotated[int, Meta(ge=259)] = 259
    """At least the tokenizer's: 256 bytes and 3 special tokens."""
    kv_capacity_tokens: Annotated[int, Meta(ge=256)] = 64 * 8_192
    lookahead: bool = False
    """Whether the engine core plans a step ahead unless it is told otherwise."""
    eos_after: Annotated[int, Meta(ge=0)] | None = None
    """The end-of-sequence token is drawn after so many tokens; by default never."""
    fail_at_step: StepNumber | None = None
    """This step raises."""
    hang_at_step: StepNumber | None = None
    """This step never ends."""
    poison_token: Annotated[int, Meta(ge=0)] | None = None
    """A step with a request whose prompt holds this token id raises."""


def parse_sim_options(model: str) -> SimOptions:
    """The options in `sim:key=value,...`. Raises ModelRefused, which names the key, for one that is wrong."""
    values: dict[str, str] = {}
    for pair in filter(None, model.removeprefix(SIM_PREFIX).split(",")):
        key, separator, value = pair.partition("=")
        if not separator:
            raise ModelRefused(f"{model}: {pair!r} must look like key=value")
        if key in values:
            raise ModelRefused(f"{model}: {key} is given twice")
        values[key] = value
    try:
        return msgspec.convert(values, SimOptions, strict=False)
    except msgspec.ValidationError as error:
        raise ModelRefused(f"{model}: {error}") from error
