"""Options of `shoal bench engine`, declared once: the command-line flags come from here."""

from typing import Annotated, Literal

import msgspec
from msgspec import Meta

Count = Annotated[int, Meta(ge=1)]
Scenario = Literal["decode", "prefill", "together", "joining", "orders", "sampler", "lookahead"]
SCENARIOS: tuple[Scenario, ...] = ("decode", "prefill", "together", "joining", "orders", "sampler", "lookahead")


class EngineBenchConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """`shoal bench engine`. Raises ValueError (msgspec.ValidationError in a conversion) for options that conflict."""

    model: Annotated[str, Meta(description="what to measure: demo, a model folder, or a hub id")] = "demo"
    only: Annotated[tuple[Scenario, ...], Meta(description="measure these scenarios alone")] = SCENARIOS
    batches: Annotated[tuple[Count, ...], Meta(description="rows that decode at once")] = (1, 8, 32)
    contexts: Annotated[tuple[Count, ...], Meta(description="tokens in front of each row that decodes")] = (64, 300)
    prompts: Annotated[tuple[Count, ...], Meta(description="lengths of prompts that are prefilled alone")] = (128, 512)
    long_prompt: Annotated[int, Meta(ge=64, description="tokens of the prompt that joins running rows")] = 1000
    long_context: Annotated[int, Meta(ge=64, description="tokens of the rows that a short one joins and leaves")] = 1500
    steps: Annotated[int, Meta(ge=2, description="steps, or orders, of one measurement")] = 20
    repeats: Annotated[int, Meta(ge=1, description="measurements of each figure; medians are reported")] = 3
    host_work_ms: Annotated[float, Meta(ge=0, description="lookahead: what the host computes between two steps")] = 5.0
    kv_cache_memory_bytes: Annotated[
        Count | None, Meta(description="memory for the KV cache; default: as an engine core")
    ] = None
    seed: Annotated[int, Meta(description="fixes the tokens")] = 0
    json: Annotated[str | None, Meta(description="file for the report as JSON")] = None
    markdown: Annotated[str | None, Meta(description="file for the report as Markdown tables")] = None

    @property
    def max_num_seqs(self) -> int:
        """Rows that the device needs: the largest batch, and one that joins."""
        return max(self.batches) + 1
