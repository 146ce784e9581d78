"""Model runner for every model that slots do not fit: each row has an mlx-lm prompt cache of its own.

A step runs its rows one after another, so it serves any text model of mlx-lm (sliding windows, recurrent states,
chunked attention) exactly as mlx-lm does, at the speed of one sequence at a time.
"""

from collections.abc import Sequence
from typing import Any

import mlx.core as mx

from engine_core.device import BlockData, BlockId, BlockPart, DecodeRow, PrefillChunk, StepPlan
from engine_core.mlx_lm_adapter import cache_arrays, make_prompt_cache
from engine_core.model_runner import LanguageModel, PlanError


class _Row:
    def __init__(self, cache: list[Any]) -> None:
        self.cache = cache
        self.cached_tokens = 0


class RowRunner:
    """A ModelRunner; see the module."""

    def __init__(self, model: LanguageModel) -> None:
        self.stores_blocks = False
        self.has_states = False
        self.block_parts: Sequence[BlockPart] = ()
        self._model = model
        self._rows: dict[int, _Row] = {}
        self._fed: list[_Row] = []
        """Rows of the last forward."""

    def prepare(self, plan: StepPlan) -> None:
        """See ModelRunner. Slots are only reckoned with: each row's cache grows when it is written, and goes with its
        row. Caches of rows cannot be cut at any token, so there are neither blocks nor copies."""
        if plan.drops or plan.loads or plan.saves or plan.restores or plan.copies:
            raise PlanError("blocks or copies of rows that have mlx-lm's own caches")
        self._fed = []
        for row in plan.releases:
            if self._rows.pop(row, None) is None:
                raise PlanError(f"row {row} is not taken")
        for admission in plan.admissions:
            if admission.row in self._rows:
                raise PlanError(f"row {admission.row} is taken")
            self._rows[admission.row] = _Row(make_prompt_cache(self._model))

    def forward(
        self, prefills: Sequence[PrefillChunk], decodes: Sequence[DecodeRow], token_ids: mx.array
    ) -> mx.array | None:
        """See ModelRunner."""
        self._fed = []
        for chunk in prefills:
            row = self._row_at(chunk.row, chunk.start)
            self._feed(row, mx.array(list(chunk.token_ids)))
            mx.eval(cache_arrays(row.cache))
        logits = [
            self._feed(self._row_at(decode.row, decode.start), token_ids[index : index + 1])[:, -1]
            for index, decode in enumerate(decodes)
        ]
        return mx.concatenate(logits) if logits else None

    def score(self, chunk: PrefillChunk) -> mx.array:
        """See ModelRunner."""
        return self._feed(self._row_at(chunk.row, chunk.start), mx.array(list(chunk.token_ids)))[0]

    def read_block(self, block_id: BlockId) -> BlockData:
        """Raises PlanError: none is stored."""
        raise PlanError(f"block {block_id} was never stored")

    def written_arrays(self) -> list[mx.array]:
        """See ModelRunner."""
        return [array for row in self._fed for array in cache_arrays(row.cache)]

    def _feed(self, row: _Row, token_ids: mx.array) -> mx.array:
        logits = self._model(token_ids[None], cache=row.cache)
        row.cached_tokens += token_ids.size
        self._fed.append(row)
        return logits

    def _row_at(self, number: int, start: int) -> _Row:
        row = self._rows.get(number)
        if row is None or row.cached_tokens != start:
            cached = None if row is None else row.cached_tokens
            raise PlanError(f"row {number}: tokens at {start}, but the row has {cached} cached")
        return row

    def check_invariants(self) -> None:
        """Asserts that no released row is remembered."""
        assert all(row in self._rows.values() for row in self._fed)
        assert all(row.cached_tokens >= 0 for row in self._rows.values())
