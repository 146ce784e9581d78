"""Log probabilities of prompt tokens: a chunk is fed by itself, in parts, and its logits reduced at once.

A forward that gives logits of all its tokens holds [tokens, vocabulary] numbers, several times over while they are
reduced: parts of SCORED_TOKENS bound that (128 tokens of a vocabulary of 151,936 in float32 are 78 MB).
"""

from collections.abc import Iterator

import mlx.core as mx

from engine_core.device import PrefillChunk
from engine_core.logprob_rows import LogprobRows
from engine_core.model_runner import ModelRunner
from protocol.logprobs import TokenLogprobs

SCORED_TOKENS = 128


def score_chunk(runner: ModelRunner, chunk: PrefillChunk) -> list[TokenLogprobs]:
    """Feeds the chunk; how likely each of its targets was. Waits for the device. Raises PlanError as `forward` does."""
    found: list[TokenLogprobs] = []
    for part in _parts(chunk):
        places = range(len(part.token_ids))
        rows = LogprobRows(places, [part.logprobs] * len(places))
        arrays = rows.of(runner.score(part), mx.array(list(part.targets)))
        mx.eval(arrays.arrays(), runner.written_arrays())
        by_place = arrays.by_place()
        found += [by_place[place] for place in places]
    return found


def _parts(chunk: PrefillChunk) -> Iterator[PrefillChunk]:
    for start in range(0, len(chunk.token_ids), SCORED_TOKENS):
        end = start + SCORED_TOKENS
        token_ids, targets = chunk.token_ids[start:end], chunk.targets[start:end]
        yield PrefillChunk(chunk.row, chunk.start + start, token_ids, targets, chunk.logprobs)
