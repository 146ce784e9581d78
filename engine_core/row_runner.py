"""Model runner for every model that slots do not fit: each row has an mlx-lm prompt cache of its own.

A step runs its rows one after another, so it serves any text model of mlx-lm (sliding windows, recurrent states,
chunked attention) exactly as mlx-lm does, at the speed of one sequence at a time.
"""

from collections.abc import Sequence
from typing import Any

import mlx.core as mx

from engine_core.device import BlockId, BlockRestore, BlockSave, DecodeRow, PrefillChunk
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
        self._model = model
        self._rows: dict[int, _Row] = {}
        self._decoded: list[_Row] = []
        """Rows of the last decode."""

    def admit(self, row: int) -> None:
        """See ModelRunner."""
        if row in self._rows:
            raise PlanError(f"row {row} is taken")
        self._rows[row] = _Row(make_prompt_cache(self._model))

    def release(self, row: int) -> None:
        """See ModelRunner."""
        if self._rows.pop(row, None) is None:
            raise PlanError(f"row {row} is not taken")
        self._decoded = []

    def reserve(self, rows: int, length: int) -> None:
        """Nothing to do: each row's cache grows when it is written, and goes with its row."""

    def prefill(self, chunk: PrefillChunk) -> None:
        """See ModelRunner."""
        row = self._row_at(chunk.row, chunk.start)
        self._feed(row, chunk.token_ids)
        mx.eval(cache_arrays(row.cache))

    def decode(self, decodes: Sequence[DecodeRow]) -> mx.array:
        """See ModelRunner."""
        self._decoded = [self._row_at(decode.row, decode.start) for decode in decodes]
        fed = zip(self._decoded, decodes, strict=True)
        return mx.concatenate([self._feed(row, [decode.token_id])[:, -1] for row, decode in fed])

    def drop_blocks(self, block_ids: Sequence[BlockId]) -> None:
        """Raises PlanError when there is any: caches of rows cannot be cut at any token."""
        if block_ids:
            raise PlanError(f"blocks {block_ids} were never stored")

    def save_blocks(self, saves: Sequence[BlockSave]) -> None:
        """Raises PlanError when there is any, see `drop_blocks`."""
        if saves:
            raise PlanError(f"blocks {[save.block_id for save in saves]} cannot be stored")

    def restore_blocks(self, restore: BlockRestore) -> None:
        """Raises PlanError, see `drop_blocks`."""
        raise PlanError(f"blocks {restore.block_ids} were never stored")

    def written_arrays(self) -> list[mx.array]:
        """See ModelRunner."""
        return [array for row in self._decoded for array in cache_arrays(row.cache)]

    def _feed(self, row: _Row, token_ids: Sequence[int]) -> mx.array:
        logits = self._model(mx.array([list(token_ids)]), cache=row.cache)
        row.cached_tokens += len(token_ids)
        return logits

    def _row_at(self, number: int, start: int) -> _Row:
        row = self._rows.get(number)
        if row is None or row.cached_tokens != start:
            cached = None if row is None else row.cached_tokens
            raise PlanError(f"row {number}: tokens at {start}, but the row has {cached} cached")
        return row

    def check_invariants(self) -> None:
        """Asserts that no released row is remembered."""
        assert all(row in self._rows.values() for row in self._decoded)
        assert all(row.cached_tokens >= 0 for row in self._rows.values())
