"""The sampling distribution in float64, written for clarity: what the vectorised sampler must agree with."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from protocol.sampling import SamplingParams

Floats = NDArray[np.float64]


def adjusted_logits(
    logits: Floats,
    params: SamplingParams,
    prompt: Sequence[int],
    output: Sequence[int],
    eos: Sequence[int],
    output_position: int | None = None,
) -> Floats:
    """One row's logits after all that is added to or taken from them."""
    result = logits.astype(np.float64)
    for token, bias in params.logit_bias.items():
        result[token] += bias
    for token in set(prompt) | set(output):
        factor = params.repetition_penalty
        result[token] = result[token] / factor if result[token] > 0 else result[token] * factor
    for token in set(output):
        result[token] -= params.presence_penalty + params.frequency_penalty * list(output).count(token)
    position = len(output) if output_position is None else output_position
    if position < params.min_tokens:
        result[list(params.stop_token_ids)] = -np.inf
        if not params.ignore_eos:
            result[list(eos)] = -np.inf
    if params.allowed_token_ids is not None:
        result[list(set(range(len(result))) - set(params.allowed_token_ids))] = -np.inf
    for *beginning, last in params.bad_words_token_ids:
        if list(output)[len(output) - len(beginning) :] == beginning:
            result[last] = -np.inf
    return result


def probabilities(adjusted: Floats, params: SamplingParams) -> Floats:
    """One row's distribution; all on the likeliest token when greedy."""
    if params.temperature < 1e-5:
        greedy = np.zeros_like(adjusted)
        greedy[adjusted.argmax()] = 1
        return greedy
    weights = np.exp((adjusted - adjusted.max()) / params.temperature)
    weights[weights < params.min_p] = 0
    if 0 < params.top_k < len(weights):
        weights[weights < np.sort(weights)[-params.top_k]] = 0
    if params.top_p < 1:
        descending = np.sort(weights)[::-1]
        before = np.cumsum(descending) - descending
        weights[weights < descending[before < params.top_p * weights.sum()].min()] = 0
    return weights / weights.sum()


def acceptable_tokens(distribution: Floats, uniform: float, slack: float) -> set[int]:
    """Tokens that the inverse distribution function gives at a number within `slack` of `uniform`."""
    upper = np.cumsum(distribution)
    lower = upper - distribution
    hit = (lower <= uniform + slack) & (upper > uniform - slack) & (distribution > 0)
    return set(np.flatnonzero(hit).tolist())
