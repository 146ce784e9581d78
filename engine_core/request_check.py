"""The engine core's door: what a request must be so that it cannot harm the others.

A token id beyond the vocabulary would make a gather or scatter on the device read or write foreign memory, without
an error. So every id is checked here, although the API server checks too. The prompt's prefixes are named here too,
because this is not the busy loop's thread.
"""

from collections.abc import Iterator, Sequence

from engine_core.events import RequestArrived, RequestInvalid
from engine_core.sampling_check import sampling_problems
from engine_core.scheduler_limits import too_long
from protocol.codec import TOKEN_ID_BYTES, Frame, unpack_token_ids
from protocol.errors import ProtocolError
from protocol.grammar import MAX_GRAMMAR_BYTES
from protocol.messages import EngineCoreRequest
from protocol.prefix_hash import prefix_chain, prefix_root


def check_request(
    request: EngineCoreRequest,
    buffers: Sequence[Frame],
    vocab_size: int,
    max_model_len: int,
    prefix_card_hash: str | None = None,
) -> RequestArrived | RequestInvalid:
    """The request with its prompt, or what is wrong with it.

    `prefix_card_hash` is that of the model whose prefixes are stored; None where none are. A prompt whose log
    probabilities are wanted is computed anew, all of it.
    """
    if not 1 <= len(buffers) <= 2:  # the second one is the coordinator's: what it names is not trusted here
        return RequestInvalid(request, f"{len(buffers)} buffers came with the request instead of 1 or 2")
    # First of all: to look at 15 million tokens one by one takes seconds, in which no heartbeat is sent.
    if reason := too_long(len(buffers[0]) // TOKEN_ID_BYTES, max_model_len):
        return RequestInvalid(request, reason)
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
    if request.grammar is not None and len(request.grammar.text) > MAX_GRAMMAR_BYTES:
        yield f"the grammar has {len(request.grammar.text)} characters"
    yield from sampling_problems(request.sampling, vocab_size)
