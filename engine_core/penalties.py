"""Repetition, presence and frequency penalties: which tokens each row has had, counted on the device."""

from collections.abc import Sequence

import mlx.core as mx

from protocol.sampling import SamplingParams


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
    """Owner of the counts: [slots, vocabulary], a slot only for each row with penalties."""

    def __init__(self, vocab_size: int) -> None:
        self._vocab_size = vocab_size
        self._slot_of_row: dict[int, int] = {}
        self._in_prompt, self._in_output = _no_counts(vocab_size)

    def admit(self, row: int, prompt: Sequence[int], output: Sequence[int]) -> None:
        """Counts a sequence from its start; tokens must be below the vocabulary's size."""
        taken = set(self._slot_of_row.values())
        slot = next(slot for slot in range(len(taken) + 1) if slot not in taken)
        if slot == self._in_prompt.shape[0]:
            self._add_slots(max(1, slot))
        self._slot_of_row[row] = slot
        self._in_prompt[slot] = _counts(prompt, self._vocab_size) > 0
        self._in_output[slot] = _counts(output, self._vocab_size)
        mx.eval(self.arrays())

    def _add_slots(self, slots: int) -> None:
        self._in_prompt = mx.concatenate([self._in_prompt, mx.zeros((slots, self._vocab_size), mx.bool_)])
        self._in_output = mx.concatenate([self._in_output, mx.zeros((slots, self._vocab_size), mx.int32)])

    def release(self, row: int) -> None:
        """Forgets a row, if it has counts; the last one frees the memory."""
        self._slot_of_row.pop(row, None)
        if not self._slot_of_row:
            self._in_prompt, self._in_output = _no_counts(self._vocab_size)

    def apply(self, logits: mx.array, batch: PenaltyRows) -> mx.array:
        """The logits, float32 [batch, vocabulary], with the penalties of these rows taken off.

        Repetition divides positive and multiplies negative logits of all tokens had (Keskar et al. 2019,
        arXiv:1909.05858); presence and frequency subtract, over the output alone (OpenAI API reference).
        """
        slots = self._slots(batch)
        counts = self._in_output[slots]
        had = self._in_prompt[slots] | (counts > 0)
        own = logits[batch.indices]
        repeated = mx.where(own > 0, own / batch.repetition, own * batch.repetition)
        own = mx.where(had, repeated, own)
        own = own - batch.frequency * counts - batch.presence * (counts > 0)
        penalised = logits[:]  # a new handle: item assignment changes the array that it is called on
        penalised[batch.indices] = own
        return penalised

    def add(self, batch: PenaltyRows, tokens: mx.array) -> None:
        """Counts the tokens [batch] just sampled, those of these rows. Not evaluated: see `arrays`."""
        slots = self._slots(batch)
        self._in_output = self._in_output.at[slots, tokens[batch.indices]].add(1)

    def _slots(self, batch: PenaltyRows) -> mx.array:
        return mx.array([self._slot_of_row[row] for row in batch.rows])

    def arrays(self) -> list[mx.array]:
        """What `add` changed; to be evaluated with the sampled tokens."""
        return [self._in_prompt, self._in_output]

    def check_invariants(self) -> None:
        """Asserts that no two rows share a slot and every slot exists."""
        slots = list(self._slot_of_row.values())
        assert len(set(slots)) == len(slots)
        assert all(slot < self._in_output.shape[0] for slot in slots)
        assert self._in_prompt.shape == self._in_output.shape


def _no_counts(vocab_size: int) -> tuple[mx.array, mx.array]:
    """Arrays of their own: an empty slice would keep the memory that it was cut from."""
    return mx.zeros((0, vocab_size), mx.bool_), mx.zeros((0, vocab_size), mx.int32)


def _counts(token_ids: Sequence[int], vocab_size: int) -> mx.array:
    counts = mx.zeros(vocab_size, mx.int32)
    return counts.at[mx.array(list(token_ids))].add(1) if len(token_ids) else counts
