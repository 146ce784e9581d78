"""One request inside the engine core: its tokens, how many of them are in the KV cache, and its status."""

import enum
from array import array
from collections import deque
from collections.abc import Sequence as Tokens

from engine_core.grammar import Grammar
from protocol.logprobs import TokenLogprobs
from protocol.messages import EngineCoreRequest, RequestKey
from protocol.prefix_hash import BLOCK_TOKENS, BlockHash, next_block_hash

HISTORY_LENGTH = 16
"""Status changes kept for the message of an illegal move."""


class Status(enum.Enum):
    """Where a sequence stands."""

    WAITING = enum.auto()
    RUNNING = enum.auto()
    """Has a row: prefilling or decoding."""
    PREEMPTED = enum.auto()
    """Waits again: its row was taken, its tokens will be computed anew."""
    FINISHED = enum.auto()


_LEGAL_MOVES = {
    Status.WAITING: {Status.RUNNING, Status.FINISHED},
    Status.RUNNING: {Status.PREEMPTED, Status.FINISHED},
    Status.PREEMPTED: {Status.RUNNING, Status.FINISHED},
    Status.FINISHED: set(),
}


class IllegalMove(AssertionError):
    """A bug of ours: a sequence was moved to a status that its present one does not lead to."""


class Sequence:
    """Changed by the scheduler only, and only through these methods.

    Its tokens are the prompt, the output, and at the end those that planned steps sample and that are not known yet.
    The first `num_computed` of them are in the KV cache when all planned steps have run. All but the last one are
    prefilled; the last one is fed as a decode row, which yields the next.
    """

    def __init__(
        self,
        request: EngineCoreRequest,
        prompt: "array[int]",
        arrival: int,
        max_model_len: int,
        due: int = 0,
        chain: Tokens[BlockHash] = (),
    ) -> None:
        """`prompt` is what came with the request: its last `num_output_tokens` are output of an earlier attempt.

        `chain` is that of all of it (protocol.prefix_hash); empty when no prefix of it is to be stored.
        """
        num_prompt_tokens = len(prompt) - request.num_output_tokens
        self.request = request
        self.prompt = prompt[:num_prompt_tokens]
        self.output = prompt[num_prompt_tokens:].tolist()
        self.num_computed = 0
        self.row = -1
        """Row of the KV cache while running, else -1."""
        self.grammar: Grammar | None = None
        """What its output has to look like, once that is compiled."""
        self.order = (request.priority, arrival)
        """Who goes first: the smaller. `arrival` is unique in its engine core."""
        self.due = due
        """When so many tokens have been admitted, it is overdue: while it waits, none of its client that came later
        goes before it any more; while it is prefilled, none that became overdue later."""
        self.stay = 0
        """Counts its stays in a row: what was planned in an earlier one is of no interest any more."""
        self.most_kv_tokens = min(num_prompt_tokens + request.sampling.max_tokens, max_model_len) - 1
        """Most tokens of it that the KV cache will ever hold: the last sampled one is never fed."""
        self.cached_tokens: int | None = None
        """Prompt tokens that were found stored when it was first admitted; None before that, or without a chain."""
        self.prompt_logprobs: list[TokenLogprobs] = []
        """Of the prompt's tokens from the second on, as far as known; all by the first token of output."""
        self._num_unknown = 0
        self._chain = list(chain)
        self._blocks_taken = 0
        self._status = Status.WAITING
        self._history: deque[Status] = deque([Status.WAITING], maxlen=HISTORY_LENGTH)

    @property
    def status(self) -> Status:
        """Where it stands."""
        return self._status

    @property
    def key(self) -> RequestKey:
        """Request id and attempt."""
        return self.request.key

    @property
    def num_tokens(self) -> int:
        """Known tokens: prompt and output."""
        return len(self.prompt) + len(self.output)

    @property
    def length(self) -> int:
        """All its tokens: known ones and those that planned steps sample."""
        return self.num_tokens + self._num_unknown

    @property
    def prefill_left(self) -> int:
        """Tokens to prefill before it can decode."""
        return self.length - 1 - self.num_computed

    @property
    def is_at_its_end(self) -> bool:
        """Whether the planned steps bring it to its greatest length: it ends with their results at the latest."""
        return self.length > self.most_kv_tokens

    @property
    def last_token(self) -> int | None:
        """The one that is to be fed next; None when it is not known yet."""
        if self._num_unknown:
            return None
        return self.output[-1] if self.output else self.prompt[-1]

    @property
    def output_position(self) -> int:
        """Of the token that would be sampled next."""
        return len(self.output) + self._num_unknown

    @property
    def wanted_scores(self) -> int | None:
        """How many alternatives of each prompt token are wanted with its log probability; None when there are none to
        come: what was told with the first token of output is not told again."""
        return None if self.output else self.request.sampling.prompt_logprobs

    @property
    def chain(self) -> Tokens[BlockHash]:
        """Its root and the hashes of all blocks whose tokens are known; empty when no prefix of it is to be stored."""
        while self._chain and len(self._chain) * BLOCK_TOKENS <= self.num_tokens:
            start = (len(self._chain) - 1) * BLOCK_TOKENS
            self._chain.append(next_block_hash(self._chain[-1], self.tokens(start, BLOCK_TOKENS)))
        return self._chain

    def take_complete_blocks(self) -> range:
        """Places in the chain of the blocks that were computed since this was last asked."""
        first, self._blocks_taken = self._blocks_taken, min(self.num_computed, self.num_tokens) // BLOCK_TOKENS
        return range(first + 1, self._blocks_taken + 1) if self._chain else range(0)

    def tokens(self, start: int, count: int) -> Tokens[int]:
        """Known tokens `start` .. `start + count - 1`."""
        stop, length = start + count, len(self.prompt)
        if stop <= length:
            return self.prompt[start:stop]
        return [*self.prompt[start:], *self.output[max(start - length, 0) : stop - length]]

    def compiled(self, grammar: Grammar) -> None:
        """Its grammar is there: it may run."""
        assert self.request.grammar is not None and self._status is Status.WAITING, self
        self.grammar = grammar

    def admit(self, row: int, due: int = 0) -> None:
        """It gets an empty row. From now on `due` counts."""
        self._move(Status.RUNNING)
        self.row = row
        self.stay += 1
        self.due = due

    def restored(self, count: int) -> None:
        """The first `count` tokens are copied to its row: they were stored, or another row has them."""
        assert self._status is Status.RUNNING and self.num_computed == 0 and count <= self.prefill_left, self
        self.num_computed = count
        self._blocks_taken = count // BLOCK_TOKENS
        if self.cached_tokens is None:
            self.cached_tokens = count

    def preempt(self) -> None:
        """It loses its row and what was computed there, and what planned steps sample there: that is drawn anew."""
        self._move(Status.PREEMPTED)
        self.row = -1
        self.stay += 1
        self.num_computed = 0
        self.prompt_logprobs = []
        self._num_unknown = 0

    def scored(self, logprobs: Tokens[TokenLogprobs]) -> None:
        """Log probabilities of the next prompt tokens are known."""
        self.prompt_logprobs.extend(logprobs)

    def take_prompt_logprobs(self) -> list[TokenLogprobs]:
        """All of them, to be told."""
        taken, self.prompt_logprobs = self.prompt_logprobs, []
        return taken

    def finish(self) -> None:
        """It ended, for whatever reason."""
        self._move(Status.FINISHED)
        self.row = -1
        self.stay += 1

    def planned(self, prefill_tokens: int, *, decodes: bool) -> None:
        """A step will compute so many tokens more; if it `decodes`, then the last one too, and sample the next."""
        assert 0 <= prefill_tokens <= self.prefill_left, self
        assert not decodes or (prefill_tokens == self.prefill_left and not self.is_at_its_end), self
        self.num_computed += prefill_tokens + decodes
        self._num_unknown += decodes

    def sampled(self, token_id: int) -> None:
        """The oldest of the tokens that were not known is this one."""
        assert self._num_unknown, self
        self._num_unknown -= 1
        self.output.append(token_id)

    def _move(self, status: Status) -> None:
        if status not in _LEGAL_MOVES[self._status]:
            history = " > ".join(past.name for past in self._history)
            raise IllegalMove(f"{self.key}: {history} > {status.name}")
        self._status = status
        self._history.append(status)

    def __repr__(self) -> str:
        return (
            f"<Sequence {self.key.request_id}/{self.key.attempt} {self._status.name} stay {self.stay} row {self.row}: "
            f"{self.num_computed} computed of {len(self.prompt)} + {len(self.output)} + {self._num_unknown}>"
        )
