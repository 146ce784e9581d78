"""Repetition, presence and frequency penalties: which tokens each row has had, kept and counted on the device.

Only the logits of tokens that a row has had are touched: 3 ms instead of 25 ms for passes over [32, 49152] logits
when rows have had 500 tokens, on 2 x86 cores.
"""

from collections.abc import Sequence

import mlx.core as mx

from engine_core.row_selection import put_rows, take_rows
from protocol.sampling import SamplingParams

_LEAST_ROOM = 256


def wants_penalties(params: SamplingParams) -> bool:
    """Whether any penalty of the request is on."""
    return params.repetition_penalty != 1 or params.presence_penalty != 0 or params.frequency_penalty != 0


class PenaltyRows:
    """Those rows of a batch that have penalties: where they are in the batch, and how strong the penalties are."""

    def __init__(self, indices: Sequence[int], rows: Sequence[int], params: Sequence[SamplingParams]) -> None:
        """`indices` are places in the batch, `rows` the device's rows; both in the order of `params`."""
        self.indices = mx.array(list(indices))
        self.rows = tuple(rows)
        self.repetition = mx.array([p.repetition_penalty for p in params], mx.float32)[:, None]
        self.presence = mx.array([p.presence_penalty for p in params], mx.float32)[:, None]
        self.frequency = mx.array([p.frequency_penalty for p in params], mx.float32)[:, None]


class PenaltyCounts:
    """Owner of the counts, in lines: only a row with penalties has one. Nothing here waits for the device."""

    def __init__(self, vocab_size: int) -> None:
        self._vocab_size = vocab_size
        self._line_of_row: dict[int, int] = {}
        self._lengths: dict[int, int] = {}
        """Entries of each row in `_had`."""
        self._had, self._in_output = self._nothing()

    def _nothing(self) -> tuple[mx.array, mx.array]:
        """`_had` [lines, room]: tokens that a row has had, some of them more than once. `_in_output` [lines,
        vocabulary]: how often its output has each. Arrays of their own: a slice keeps the memory it was cut from."""
        return mx.zeros((0, _LEAST_ROOM), mx.uint32), mx.zeros((0, self._vocab_size), mx.int32)

    def admit(self, row: int, prompt: Sequence[int], output: Sequence[int]) -> None:
        """Counts a sequence from its start; tokens must be below the vocabulary's size."""
        had = list({*prompt, *output})
        line = self._free_line()
        self._make_room(len(had))
        self._line_of_row[row], self._lengths[row] = line, len(had)
        if had:
            self._had[line, : len(had)] = mx.array(had, mx.uint32)
        counts = mx.zeros(self._vocab_size, mx.int32)
        self._in_output[line] = counts.at[mx.array(list(output))].add(1) if len(output) else counts

    def _free_line(self) -> int:
        taken = set(self._line_of_row.values())
        line = next(line for line in range(len(taken) + 1) if line not in taken)
        if line == self._in_output.shape[0]:
            more = max(1, line)
            self._had = mx.concatenate([self._had, mx.zeros((more, self._had.shape[1]), mx.uint32)])
            self._in_output = mx.concatenate([self._in_output, mx.zeros((more, self._vocab_size), mx.int32)])
        return line

    def _make_room(self, entries: int) -> None:
        lines, room = self._had.shape
        if entries > room:
            more = max(entries, 2 * room) - room
            self._had = mx.concatenate([self._had, mx.zeros((lines, more), mx.uint32)], axis=1)

    def release(self, row: int) -> None:
        """Forgets a row, if it has counts; the last one frees the memory."""
        self._line_of_row.pop(row, None)
        self._lengths.pop(row, None)
        if not self._line_of_row:
            self._had, self._in_output = self._nothing()

    def apply(self, logits: mx.array, batch: PenaltyRows) -> mx.array:
        """The logits, float32 [batch, vocabulary], with the penalties of these rows taken off.

        Repetition divides positive and multiplies negative logits of all tokens had (Keskar et al. 2019,
        arXiv:1909.05858); presence and frequency subtract, over the output alone (OpenAI API reference).
        """
        longest = max(self._lengths[row] for row in batch.rows)
        if longest == 0:
            return logits
        had, lengths = self._had_by(batch, longest)
        own = take_rows(logits, batch.indices)
        before = mx.take_along_axis(own, had, axis=1)
        counts = mx.take_along_axis(self._in_output[self._lines(batch)], had, axis=1)
        after = mx.where(before > 0, before / batch.repetition, before * batch.repetition)
        after = after - batch.frequency * counts - batch.presence * (counts > 0)
        own = mx.put_along_axis(own, had, mx.where(lengths > 0, after, before), axis=1)
        return put_rows(logits, batch.indices, own)

    def _had_by(self, batch: PenaltyRows, longest: int) -> tuple[mx.array, mx.array]:
        """Tokens that these rows have had [rows, longest], and how many entries each has [rows, 1].

        What is beyond a row's own entries repeats its first one: writing the same value twice does no harm.
        """
        had, lengths = self._had[self._lines(batch), :longest], self._row_lengths(batch)
        return mx.where(mx.arange(longest) < lengths, had, had[:, :1]), lengths

    def add(self, batch: PenaltyRows, tokens: mx.array) -> None:
        """Counts the tokens [batch] just sampled, those of these rows. Not evaluated: see `arrays`."""
        lines, lengths = self._lines(batch), self._row_lengths(batch)
        own = tokens[batch.indices]
        self._make_room(1 + max(self._lengths[row] for row in batch.rows))
        self._had[lines, lengths[:, 0]] = own.astype(mx.uint32)
        self._in_output = self._in_output.at[lines, own].add(1)
        for row in batch.rows:
            self._lengths[row] += 1

    def _lines(self, batch: PenaltyRows) -> mx.array:
        return mx.array([self._line_of_row[row] for row in batch.rows])

    def _row_lengths(self, batch: PenaltyRows) -> mx.array:
        return mx.array([self._lengths[row] for row in batch.rows])[:, None]

    def arrays(self) -> list[mx.array]:
        """What `add` changed; to be evaluated with the sampled tokens."""
        return [self._had, self._in_output]

    def check_invariants(self) -> None:
        """Asserts that no two rows share a line, every line exists and holds what is said to be in it."""
        lines = list(self._line_of_row.values())
        assert len(set(lines)) == len(lines)
        assert all(line < self._in_output.shape[0] for line in lines)
        assert self._had.shape[0] == self._in_output.shape[0]
        assert self._lengths.keys() == self._line_of_row.keys()
        assert all(length <= self._had.shape[1] for length in self._lengths.values())
