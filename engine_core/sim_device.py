"""A device without a model: it waits as long as a step is said to take, and its tokens are letters.

For tests and benches of everything around the model, with many engine cores on few CPU cores. What is measured with
it is simulated and must be called so. A token depends only on the prompt, its output position and, when sampling,
the seed: so a request gets the same text from any engine core, alone or in a batch, preempted or not.
"""

import math
import threading
import time
import zlib
from array import array
from collections import deque
from collections.abc import Sequence

import msgspec

from engine_core.config import EngineCoreConfig
from engine_core.device import (
    Admission,
    BlockData,
    BlockId,
    BlockPart,
    DecodeRow,
    OnProgress,
    OpenedModel,
    StepPlan,
    StepResult,
)
from engine_core.pool_lengths import SHORTEST_SLOT, pool_lengths
from engine_core.sim_card import IM_END, sim_card
from engine_core.sim_options import SimOptions, parse_sim_options
from protocol.logprobs import TokenLogprobs
from protocol.prefix_hash import BLOCK_TOKENS

_LETTERS = b"etaoin shrdlu cmfwyp vbgkqj "
_LOGPROB = -math.log(len(set(_LETTERS)))
_LOADING_PARTS = 10


class SimulatedFailure(RuntimeError):
    """What fail_at_step raises."""


def open_sim_device(config: EngineCoreConfig, on_progress: OnProgress) -> OpenedModel:
    """ "Loads" for load_s seconds. Raises ModelRefused for options that are wrong."""
    options = parse_sim_options(config.model)
    for part in range(_LOADING_PARTS):
        on_progress(part / _LOADING_PARTS, "simulated weights")
        time.sleep(options.load_s / _LOADING_PARTS)  # this is the simulated work, as in SimDevice.collect
    name = config.served_model_name or "sim"
    card = sim_card(name, options.max_model_len, options.vocab_size)
    return OpenedModel(SimDevice(options), card, takes_grammars=False)


class _Step(msgspec.Struct, frozen=True):
    """A step that was submitted."""

    ends_s: float
    """In the clock of time.monotonic."""
    elapsed_s: float
    token_ids: list[int]
    hangs: bool
    logprobs: dict[int, TokenLogprobs]
    prompt_logprobs: dict[int, Sequence[TokenLogprobs]]


class SimDevice:
    """See engine_core.device.Device. What a step samples is known at once; it is told when its time is over."""

    block_parts: Sequence[BlockPart] = ()

    def __init__(self, options: SimOptions) -> None:
        self.kv_capacity_tokens = options.kv_capacity_tokens
        longest = options.kv_capacity_tokens // SHORTEST_SLOT * SHORTEST_SLOT + 1
        self.pool_lengths: Sequence[int] = pool_lengths(min(options.max_model_len, longest))
        self.prefix_block_tokens = BLOCK_TOKENS
        self.checkpoint_tokens = 0
        self.lookahead = options.lookahead
        self.submit_blocks = False
        self._options = options
        self._rows: dict[int, tuple[Admission, int]] = {}
        """By row: what was admitted there, and the key of its draws."""
        self._in_flight: deque[_Step] = deque()
        self._free_s = 0.0
        """When the last step that was submitted ends."""
        self._computed_steps = 0

    def submit(self, plan: StepPlan) -> None:
        """Raises SimulatedFailure when asked to."""
        for row in plan.releases:
            del self._rows[row]
        for admission in plan.admissions:
            self._rows[admission.row] = (admission, _draw_key(admission))
        computes = bool(plan.prefills or plan.decodes)
        self._computed_steps += computes
        if computes and self._computed_steps == self._options.fail_at_step:
            raise SimulatedFailure(f"step {self._computed_steps} fails, as asked")
        self._fail_of_poison(plan)
        elapsed_s = self._step_s(plan)
        self._free_s = max(self._free_s, time.monotonic()) + elapsed_s
        hangs = computes and self._computed_steps == self._options.hang_at_step
        sampled = [self._sample(decode) for decode in plan.decodes]
        self._in_flight.append(_Step(self._free_s, elapsed_s, sampled, hangs, self._logprobs(plan), _scores(plan)))

    def collect(self) -> StepResult:
        """Waits for the end of the step's time, or for ever when asked to."""
        step = self._in_flight.popleft()
        if step.hangs:
            threading.Event().wait()
        time.sleep(max(0.0, step.ends_s - time.monotonic()))
        return StepResult(step.token_ids, step.elapsed_s, step.logprobs, step.prompt_logprobs)

    def read_block(self, block_id: BlockId) -> BlockData:
        """Blocks have no parts here."""
        return []

    def close(self) -> None:
        """Forgets the rows."""
        self._rows.clear()

    def _step_s(self, plan: StepPlan) -> float:
        copied = len(plan.saves) * BLOCK_TOKENS
        copied += sum(restore.tokens for restore in plan.restores) + sum(copy.tokens for copy in plan.copies)
        prefilled = sum(len(chunk.token_ids) for chunk in plan.prefills)
        milliseconds = copied * self._options.restore_ms_per_token + prefilled * self._options.prefill_ms_per_token
        if plan.decodes:
            milliseconds += self._options.decode_ms + len(plan.decodes) * self._options.decode_ms_per_row
        return milliseconds / 1_000

    def _fail_of_poison(self, plan: StepPlan) -> None:
        rows = {chunk.row for chunk in plan.prefills} | {decode.row for decode in plan.decodes}
        if any(self._options.poison_token in self._rows[row][0].prompt for row in rows):
            raise SimulatedFailure("a request of this step holds the poison token")

    def _logprobs(self, plan: StepPlan) -> dict[int, TokenLogprobs]:
        wanted = [self._rows[decode.row][0].sampling.logprobs for decode in plan.decodes]
        return {index: _likely(count) for index, count in enumerate(wanted) if count is not None}

    def _sample(self, decode: DecodeRow) -> int:
        admission, key = self._rows[decode.row]
        eos_after = self._options.eos_after
        if eos_after is not None and decode.output_position == max(eos_after, admission.sampling.min_tokens):
            return IM_END
        return _LETTERS[_hash(b"%d/%d" % (key, decode.output_position)) % len(_LETTERS)]


def _scores(plan: StepPlan) -> dict[int, Sequence[TokenLogprobs]]:
    return {chunk.row: [_likely(chunk.logprobs)] * len(chunk.targets) for chunk in plan.prefills if chunk.targets}


def _likely(count: int) -> TokenLogprobs:
    """As if all letters were equally likely everywhere."""
    letters = sorted(set(_LETTERS))[:count]
    return TokenLogprobs(_LOGPROB, 1, letters, [_LOGPROB] * len(letters))


def _draw_key(admission: Admission) -> int:
    prompt = _hash(array("I", admission.prompt).tobytes())
    return prompt if admission.sampling.temperature == 0 else _hash(b"%d+%d" % (prompt, admission.sampling.seed))


def _hash(content: bytes) -> int:
    return zlib.crc32(content)
