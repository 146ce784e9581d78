"""Sequences for tests of what they share."""

from array import array

from engine_core.sequence import Sequence
from protocol.identifiers import ClientIndex, RequestId
from protocol.messages import EngineCoreRequest
from protocol.prefix_hash import prefix_chain, prefix_root
from protocol.sampling import SamplingParams


def sequence_of(
    prompt: list[int], row: int = 0, salt: str = "", priority: int = 0, waits: bool = False, max_tokens: int = 50
) -> Sequence:
    """Runs in this row, or waits for one; the later the higher its row."""
    ids = array("I", prompt)
    request = EngineCoreRequest(
        RequestId(f"r{row}"), ClientIndex(0), 0, "m", len(ids), SamplingParams(max_tokens), 0.0, priority, salt
    )
    sequence = Sequence(request, ids, row, 10_000, chain=prefix_chain(prefix_root("m", "", salt), ids))
    if not waits:
        sequence.admit(row)
    return sequence
