"""A device without a model: it waits as long as a step is said to take, and its tokens are letters.

For tests and benches of everything around the model, with many engine cores on few CPU cores. What is measured with
it is simulated and must be called so. A token depends only on the prompt, its output position and, when sampling,
the seed: so a request gets the same text from any engine core, alone or in a batch, preempted or not.
"""

import threading
import time
import zlib
from array import array

from engine_core.config import EngineCoreConfig
from engine_core.device import Admission, DecodeRow, OnProgress, OpenedModel, StepPlan
from engine_core.sim_card import IM_END, sim_card
from engine_core.sim_options import SimOptions, parse_sim_options
from protocol.prefix_hash import BLOCK_TOKENS

_LETTERS = b"etaoin shrdlu cmfwyp vbgkqj "
_LOADING_PARTS = 10


class SimulatedFailure(RuntimeError):
    """What fail_at_step raises."""


def open_sim_device(config: EngineCoreConfig, on_progress: OnProgress) -> OpenedModel:
    """ "Loads" for load_s seconds. Raises ModelRefused for options that are wrong."""
    options = parse_sim_options(config.model)
    for part in range(_LOADING_PARTS):
        on_progress(part / _LOADING_PARTS, "simulated weights")
        time.sleep(options.load_s / _LOADING_PARTS)  # this is the simulated work, as in SimDevice.run
    name = config.served_model_name or "sim"
    return OpenedModel(SimDevice(options), sim_card(name, options.max_model_len, options.vocab_size))


class SimDevice:
    """See engine_core.device.Device."""

    def __init__(self, options: SimOptions) -> None:
        self.kv_capacity_tokens = options.kv_capacity_tokens
        self.prefix_block_tokens = BLOCK_TOKENS
        self._options = options
        self._rows: dict[int, tuple[Admission, int]] = {}
        """By row: what was admitted there, and the key of its draws."""
        self._steps = 0

    def run(self, plan: StepPlan) -> list[int]:
        """Waits for the step's time. Raises SimulatedFailure when asked to."""
        for row in plan.releases:
            del self._rows[row]
        for admission in plan.admissions:
            self._rows[admission.row] = (admission, _draw_key(admission))
        self._copy_blocks(plan)
        if plan.prefills or plan.decodes:
            self._compute(plan)
        return [self._sample(decode) for decode in plan.decodes]

    def close(self) -> None:
        """Forgets the rows."""
        self._rows.clear()

    def _copy_blocks(self, plan: StepPlan) -> None:
        blocks = len(plan.saves) + sum(len(restore.block_ids) for restore in plan.restores)
        if blocks:
            time.sleep(blocks * BLOCK_TOKENS * self._options.restore_ms_per_token / 1_000)

    def _compute(self, plan: StepPlan) -> None:
        self._steps += 1
        if self._steps == self._options.fail_at_step:
            raise SimulatedFailure(f"step {self._steps} fails, as asked")
        if self._steps == self._options.hang_at_step:
            threading.Event().wait()
        self._fail_of_poison(plan)
        prefilled = sum(len(chunk.token_ids) for chunk in plan.prefills)
        milliseconds = prefilled * self._options.prefill_ms_per_token
        if plan.decodes:
            milliseconds += self._options.decode_ms + len(plan.decodes) * self._options.decode_ms_per_row
        time.sleep(milliseconds / 1_000)

    def _fail_of_poison(self, plan: StepPlan) -> None:
        rows = {chunk.row for chunk in plan.prefills} | {decode.row for decode in plan.decodes}
        if any(self._options.poison_token in self._rows[row][0].prompt for row in rows):
            raise SimulatedFailure("a request of this step holds the poison token")

    def _sample(self, decode: DecodeRow) -> int:
        admission, key = self._rows[decode.row]
        eos_after = self._options.eos_after
        if eos_after is not None and decode.output_position == max(eos_after, admission.sampling.min_tokens):
            return IM_END
        return _LETTERS[_hash(b"%d/%d" % (key, decode.output_position)) % len(_LETTERS)]


def _draw_key(admission: Admission) -> int:
    prompt = _hash(array("I", admission.prompt).tobytes())
    return prompt if admission.sampling.temperature == 0 else _hash(b"%d+%d" % (prompt, admission.sampling.seed))


def _hash(content: bytes) -> int:
    return zlib.crc32(content)
