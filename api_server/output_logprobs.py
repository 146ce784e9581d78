"""Log probabilities as they come from an engine core, checked: the sizes of a peer's arrays are not to be trusted."""

from protocol.errors import ProtocolError
from protocol.logprobs import TokenLogprobs, unpack_logprobs
from protocol.messages import EngineCoreOutput
from protocol.sampling import SamplingParams


def output_logprobs(output: EngineCoreOutput, sampling: SamplingParams) -> list[TokenLogprobs]:
    """Those of the output's tokens, one for each; [] when the request did not ask. Raises ProtocolError."""
    if sampling.logprobs is None or not output.token_ids:
        return []
    if output.logprobs is None:
        raise ProtocolError("the engine core sent no log probabilities, which were asked for")
    return unpack_logprobs(output.logprobs, len(output.token_ids))
