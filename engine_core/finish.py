"""When a request has ended."""

from collections.abc import Set

from engine_core.sequence import Sequence
from protocol.messages import FinishReason


def finish_reason(
    sequence: Sequence, token_id: int, eos_token_ids: Set[int], max_model_len: int
) -> tuple[FinishReason | None, int | None]:
    """Whether the sequence ends with this token, which is the last of its output: the finish and stop reasons.

    The sampler masks the tokens that end a request until `min_tokens`: so no such token comes before.
    """
    sampling = sequence.request.sampling
    if token_id in eos_token_ids and not sampling.ignore_eos:
        return FinishReason.STOP, None
    if token_id in sampling.stop_token_ids:
        return FinishReason.STOP, token_id
    if len(sequence.output) >= sampling.max_tokens or sequence.num_tokens >= max_model_len:
        return FinishReason.LENGTH, None
    return None, None
