"""How each architecture of mlx-lm is served: what the test holds true, and docs/models.md says.

.venv/bin/python tests/models_coverage/served_table.py     writes the page
"""

import ast
import importlib.util
from pathlib import Path

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


def in_slots() -> list[str]:
    """Architectures that are served in batched slots."""
    return [name for name in architectures() if name not in {**ONE_ROW, **REFUSED, **NOT_TESTED}]


def page() -> str:
    """docs/models.md."""
    rows = [_table_row(name) for name in architectures()]
    counts = f"{len(in_slots())} batched, {len(ONE_ROW)} one row at a time, {len(REFUSED)} refused"
    return _HEAD.format(counts=counts, not_tested=len(NOT_TESTED)) + "\n".join(rows) + "\n"


def _table_row(name: str) -> str:
    if name in ONE_ROW:
        return f"| {name} | one row at a time | {ONE_ROW[name]} |"
    if name in REFUSED:
        return f"| {name} | refused | {REFUSED[name]} |"
    if name in NOT_TESTED:
        return f"| {name} | not tested | {NOT_TESTED[name]} |"
    return f"| {name} | batched | |"


_HEAD = """\
# Models

Any text model that mlx-lm can load is served. How fast depends on its architecture (`model_type` in its config.json,
or what mlx-lm takes that for: `mistral` is `llama`):

- *Batched*: all running requests share each step, in slots of one KV cache. Full attention, sliding windows,
  multi-head latent attention, shared KV, recurrent and convolutional layers, and mixtures of them. Prefixes are stored
  for those without recurrent or convolutional layers.
- *One row at a time*: the requests of a step run one after another, each with mlx-lm's own cache. The answers are the
  same; many requests at once are slow.

An engine core decides when it loads a model: it runs a few sequences through the slots, staggered and longer than the
sliding windows (up to 1,024 tokens), compares the logits with mlx-lm's own, and logs the choice with its reason. A
row keeps all tokens of a sliding-window layer, and memory is counted so; a recurrent state is counted once for each of
`max_num_seqs` rows.

The table is what a test finds with small models of random weights:
{counts} ({not_tested} cannot be built small).
It is generated: `.venv/bin/python tests/models_coverage/served_table.py`.

| architecture | served | why not batched |
|---|---|---|
"""

if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
