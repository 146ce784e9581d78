"""The engine core's door: what a request must be so that it cannot harm the others.

A token id beyond the vocabulary would make a gather or scatter on the device read or write foreign memory, without
an error. So every id is checked here, although the API server checks too. The prompt's prefixes are named here too,
because this is not the busy loop's thread.
"""

from collections.abc import Iterator, Sequence

from engine_core.events import RequestArrived, RequestInvalid
from protocol.codec import Frame, unpack_token_ids
from protocol.errors import ProtocolError
from protocol.messages import EngineCoreRequest
from protocol.prefix_hash import prefix_chain, prefix_root
from protocol.sampling import SamplingParams


def check_request(
    request: EngineCoreRequest, buffers: Sequence[Frame], vocab_size: int, prefix_card_hash: str | None = None
) -> RequestArrived | RequestInvalid:
    """The request with its prompt, or what is wrong with it.

    `prefix_card_hash` is that of the model whose prefixes are stored; None where none are. A prompt whose log
    probabilities are wanted is computed anew, all of it.
    """
    if not 1 <= len(buffers) <= 2:  # the second one is the coordinator's: what it names is not trusted here
        return RequestInvalid(request, f"{len(buffers)} buffers came with the request instead of 1 or 2")
    try:
        prompt = unpack_token_ids(buffers[0])
    except ProtocolError as error:
        return RequestInvalid(request, str(error))
    for problem in _problems(request, prompt, vocab_size):
        return RequestInvalid(request, problem)
    if prefix_card_hash is None or request.sampling.prompt_logprobs is not None:
        return RequestArrived(request, prompt)
    root = prefix_root(prefix_card_hash, adapter="", cache_salt=request.cache_salt)
    return RequestArrived(request, prompt, prefix_chain(root, prompt))


def _problems(request: EngineCoreRequest, prompt: Sequence[int], vocab_size: int) -> Iterator[str]:
    if len(prompt) != request.num_prompt_tokens:
        yield f"{len(prompt)} prompt tokens came instead of {request.num_prompt_tokens}"
    if not prompt:
        yield "the prompt is empty"
    elif max(prompt) >= vocab_size:
        yield f"prompt token id {max(prompt)} is not below the vocabulary size {vocab_size}"
    if not 0 <= request.num_output_tokens < max(1, min(len(prompt), request.sampling.max_tokens)):
        yield f"num_output_tokens is {request.num_output_tokens}, with max_tokens {request.sampling.max_tokens}"
    for token_id in _sampling_token_ids(request.sampling):
        if not 0 <= token_id < vocab_size:
            yield f"token id {token_id} of the sampling parameters is not below the vocabulary size {vocab_size}"
    if request.sampling.max_tokens < 1:
        yield f"max_tokens is {request.sampling.max_tokens}"
    if not 0 <= request.sampling.seed < 2**64:
        yield f"seed {request.sampling.seed} does not have 64 bits"


def _sampling_token_ids(sampling: SamplingParams) -> Iterator[int]:
    yield from sampling.stop_token_ids
    yield from sampling.logit_bias
