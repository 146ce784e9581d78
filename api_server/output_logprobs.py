"""Log probabilities as they come from an engine core, checked: the sizes of a peer's arrays are not to be trusted."""

from protocol.errors import ProtocolError
from protocol.logprobs import PackedLogprobs, TokenLogprobs, unpack_logprobs
from protocol.messages import EngineCoreOutput
from protocol.sampling import SamplingParams


def output_logprobs(output: EngineCoreOutput, sampling: SamplingParams) -> list[TokenLogprobs]:
    """Those of the output's tokens, one for each; [] when the request did not ask. Raises ProtocolError."""
    if sampling.logprobs is None or not output.token_ids:
        return []
    return _unpacked(output.logprobs, len(output.token_ids))


def prompt_logprobs(output: EngineCoreOutput, sampling: SamplingParams, num_prompt_tokens: int) -> list[TokenLogprobs]:
    """Those of the prompt's tokens from the second on, which come with the first token of output; [] when this is not
    it, or they were not asked for. Raises ProtocolError."""
    if sampling.prompt_logprobs is None or not output.token_ids or output.position > 0 or num_prompt_tokens == 1:
        return []
    return _unpacked(output.prompt_logprobs, num_prompt_tokens - 1)


def _unpacked(packed: PackedLogprobs | None, num_tokens: int) -> list[TokenLogprobs]:
    if packed is None:
        raise ProtocolError("the engine core sent no log probabilities, which were asked for")
    return unpack_logprobs(packed, num_tokens)
