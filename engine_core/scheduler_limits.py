"""Sizes that do not change while the engine core runs."""

import msgspec

from engine_core.fair_queue import PATIENCE


class SchedulerLimits(msgspec.Struct, frozen=True, kw_only=True):
    """What a scheduler may ask of its device, and how it favours."""

    max_num_seqs: int
    """Rows."""
    max_num_batched_tokens: int
    """Token budget of a step."""
    max_model_len: int
    """Most tokens of prompt and output together."""
    kv_capacity_tokens: int
    pool_lengths: tuple[int, ...]
    """Tokens of a slot of each pool, ascending."""
    growth_tokens: int = 128
    """A sequence is admitted when every running one could still grow by this much: without it the newcomer would often
    be preempted a few steps later, and its prefill thrown away."""
    checkpoint_tokens: int = 0
    """As in Device."""
    patience: int = PATIENCE
    """Shorter prompts go before a longer one until so many times its tokens were admitted; 0: first come, first
    served."""

    def __post_init__(self) -> None:
        """Raises ValueError for limits under which requests could starve."""
        if self.max_num_batched_tokens < self.max_num_seqs:
            raise ValueError(
                f"max_num_batched_tokens ({self.max_num_batched_tokens}) must be at least max_num_seqs "
                f"({self.max_num_seqs}): a step with a full batch needs one token for each"
            )
        if self.max_model_len > longest_sequence(self.pool_lengths):
            raise ValueError(
                f"max_model_len ({self.max_model_len}) is more than the KV cache holds: "
                f"{longest_sequence(self.pool_lengths)} tokens"
            )


def too_long(prompt_tokens: int, max_model_len: int) -> str | None:
    """Why a prompt of so many tokens can never run; None when it can."""
    if prompt_tokens < max_model_len:
        return None
    return f"the prompt has {prompt_tokens} tokens, but prompt and output together can have {max_model_len} at most"


def longest_sequence(pool_lengths: tuple[int, ...]) -> int:
    """Most tokens of prompt and output that one sequence can have.

    One more than the longest slot holds: the KV of the last sampled token is never computed.
    """
    return pool_lengths[-1] + 1
