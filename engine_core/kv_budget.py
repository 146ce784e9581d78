"""What the slot layout of the KV cache costs.

Every row 0 .. rows-1 has the same length, rounded up, so the memory paid for is rows x the longest sequence, not the
sum of the sequences: one long sequence beside many short ones is dear, and so is a high row that is still held.
"""

KV_LENGTH_STEP = 256
"""Lengths are rounded up to this many tokens: the buffers keep their shape for so many steps."""


def round_kv_length(num_tokens: int) -> int:
    """The length of a row that holds so many tokens."""
    return -(-num_tokens // KV_LENGTH_STEP) * KV_LENGTH_STEP


class KvBudget:
    """The bound kv_rows x kv_length <= capacity_tokens."""

    def __init__(self, capacity_tokens: int) -> None:
        if capacity_tokens < KV_LENGTH_STEP:
            raise ValueError(f"a KV cache of {capacity_tokens} tokens is less than the smallest row, {KV_LENGTH_STEP}")
        self.capacity_tokens = capacity_tokens

    @property
    def longest_sequence(self) -> int:
        """Most tokens of prompt and output that one sequence can have, alone in row 0.

        One more than the row holds: the KV of the last sampled token is never computed.
        """
        return self.capacity_tokens // KV_LENGTH_STEP * KV_LENGTH_STEP + 1

    def fits(self, rows: int, longest: int, beside: int = 0) -> bool:
        """Whether so many rows can have the length that a sequence of `longest` tokens needs, with `beside` tokens of
        other things in the cache."""
        return rows * round_kv_length(longest) + beside <= self.capacity_tokens
