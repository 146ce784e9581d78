"""How each architecture of mlx-lm is served: what the test holds true, and docs/models.md says.

.venv/bin/python tests/models_coverage/served_table.py     writes the page
"""

import ast
import importlib.util
from collections import Counter
from pathlib import Path

from engine_core.slot_runner import Level

PAGE = Path(__file__).parents[2] / "docs" / "models.md"

ONE_ROW = {
    "afm7": "takes positions from the length of the shared keys, not from the cache",
    "deepseek_v41": "a cache class of its own, whose entries do not stand for single tokens",
    "gemma2": "its mask does not broadcast over rows",
    "gpt_bigcode": "wants positions as one number",
    "llama4": "ChunkedKVCache, which drops whole chunks",
    "longcat_flash_ngram": "its n-gram context grows with the first tokens",
    "minimax_m3_vl": "takes positions from the length of its keys, once they exceed index_topk_blocks blocks",
    "plamo3": "its window is a token longer in prefill than in decode, so that answers depend on the chunks of prefill",
}
"""Architectures that run one row at a time, and why."""

PER_POOL = {
    **dict.fromkeys(
        (
            "bailing_hybrid",
            "bailing_moe_v3",
            "deepseek_v3",
            "glm4_moe_lite",
            "kimi_k25",
            "kimi_k3",
            "kimi_linear",
            "kimi_vl",
            "longcat_flash",
            "mistral4",
        ),
        "latent attention that computes with its keys when one token is fed",
    ),
    **dict.fromkeys(("deepseek_v32", "glm_moe_dsa"), "picks the keys to attend to by an index of its own"),
    "plamo": "repeats its keys itself",
    "stablelm": "converts its keys itself",
}
"""Architectures that want arrays of keys: a forward for the decode rows of each pool."""

POOLED_DECODE = (
    "baichuan_m1",
    "bailing_moe_linear",
    "falcon_h1",
    "gear",
    "granitemoehybrid",
    "jamba",
    "lfm2",
    "lfm2-vl",
    "lfm2_moe",
    "mamba",
    "mamba2",
    "nemotron_h",
    "olmo_hybrid",
    "plamo2",
    "qwen3_5",
    "qwen3_5_moe",
    "qwen3_next",
    "recurrent_gemma",
    "rwkv7",
)
"""Architectures with recurrent or convolutional layers, which need the tokens of a chunk in a row."""

STATES_PER_POOL = ("bailing_hybrid", "bailing_moe_v3", "kimi_k3", "kimi_linear")
"""Of PER_POOL, those that have such layers, too."""

REFUSED = {
    "olmo": "mlx-lm asks for the package ai2-olmo and ends the process without it: the model is refused",
}
"""Architectures that are not served."""

NOT_TESTED = {
    "bitnet": "needs a Metal kernel",
    "muse_spark": "needs a Metal kernel",
    "phi3small": "a small configuration makes mlx-lm itself crash",
    "prism_hadamard_qwen35": "needs a packed checkpoint",
}
"""Architectures that the test cannot build; the self test decides when such a model is loaded."""


def architectures() -> list[str]:
    """Modules of the installed mlx-lm that define (or import) Model and ModelArgs. Read, not imported: olmo exits."""
    spec = importlib.util.find_spec("mlx_lm")
    assert spec is not None and spec.submodule_search_locations
    folder = Path(spec.submodule_search_locations[0]) / "models"
    return sorted(path.stem for path in folder.glob("*.py") if {"Model", "ModelArgs"} <= _names(path))


def _names(path: Path) -> set[str]:
    body = ast.parse(path.read_text(encoding="utf-8")).body
    classes = {node.name for node in body if isinstance(node, ast.ClassDef)}
    return classes | {a.asname or a.name for node in body if isinstance(node, ast.ImportFrom) for a in node.names}


def level_of(name: str) -> Level | None:
    """At which an architecture is served; None for one row at a time."""
    if name in ONE_ROW:
        return None
    if name in PER_POOL:
        return Level.PER_POOL
    return Level.POOLED_DECODE if name in POOLED_DECODE else Level.FUSED


def prefixes_of(name: str) -> str:
    """What of a served architecture's prefixes is found again."""
    if name in ONE_ROW:
        return "none"
    return "at checkpoints" if name in (*POOLED_DECODE, *STATES_PER_POOL) else "to the token"


def built() -> list[str]:
    """Architectures that the test builds."""
    return [name for name in architectures() if name not in {**REFUSED, **NOT_TESTED}]


def page() -> str:
    """docs/models.md."""
    rows = [_table_row(name) for name in architectures()]
    levels = Counter(level_of(name) for name in built())
    counts = (
        f"{levels[Level.FUSED]} fused, {levels[Level.POOLED_DECODE]} pooled decode, {levels[Level.PER_POOL]} per pool, "
        f"{levels[None]} one row at a time, {len(REFUSED)} refused"
    )
    return _HEAD.format(counts=counts, not_tested=len(NOT_TESTED)) + "\n".join(rows) + "\n"


def _table_row(name: str) -> str:
    if name in REFUSED:
        return f"| {name} | refused | | {REFUSED[name]} |"
    if name in NOT_TESTED:
        return f"| {name} | not tested | | {NOT_TESTED[name]} |"
    prefixes = prefixes_of(name)
    match level_of(name):
        case None:
            return f"| {name} | one row at a time | {prefixes} | {ONE_ROW[name]} |"
        case Level.PER_POOL:
            return f"| {name} | per pool | {prefixes} | {PER_POOL[name]} |"
        case Level.POOLED_DECODE:
            return f"| {name} | pooled decode | {prefixes} | recurrent or convolutional layers |"
        case Level.FUSED:
            return f"| {name} | fused | {prefixes} | |"


_HEAD = """\
# Models

Any text model that mlx-lm can load is served. How fast depends on its architecture (`model_type` in its config.json,
or what mlx-lm takes that for: `mistral` is `llama`):

- *Fused*: a step is one forward, for the tokens of all prompts and of all running requests.
- *Pooled decode*: a step is one forward for all running requests, and one for each chunk of a prompt.
- *Per pool*: a step is a forward for the running requests of each pool (requests of about the same length share one),
  and one for each chunk of a prompt.
- *One row at a time*: the requests of a step run one after another, each with mlx-lm's own cache. The answers are the
  same; many requests at once are slow.

An engine core decides when it loads a model: it runs a few sequences through the slots, staggered, moved, copied and
longer than the sliding windows (up to 1,024 tokens), compares the logits with mlx-lm's own, and takes the first of
these that gives the same. It logs the choice, and why the better ones were not taken. A slot keeps all tokens of a
sliding-window layer, and memory is counted so; a recurrent state is counted once for each of `max_num_seqs` rows.

Prefixes that were computed before are found again *to the token*; or, of a model with recurrent or convolutional
layers, *at checkpoints*: copies of its states at the last multiple of 64 tokens of each prompt and each output, where
prompts turned off from others, and after every 1,024 tokens (up to 4,096 where a checkpoint is large). Checkpoints are
kept in RAM only.

The table is what a test finds with small models of random weights:
{counts} ({not_tested} cannot be built small).
It is generated: `.venv/bin/python tests/models_coverage/served_table.py`.

| architecture | served | prefixes | why not fused |
|---|---|---|---|
"""

if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
