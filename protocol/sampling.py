"""Sampling parameters as the engine core understands them (checked in the API server, trusted behind it)."""

import msgspec

GREEDY_BELOW = 1e-5
"""A temperature below this is greedy: to divide by it would leave float16, and soon float32 too."""


class SamplingParams(msgspec.Struct, frozen=True, array_like=True, omit_defaults=True, gc=False):
    """How the tokens of one request are chosen. Names and meanings are vLLM's.

    Applied in this order: logit bias, penalties, minimum tokens, allowed tokens, bad words, temperature, min-p, top-k,
    top-p.
    """

    max_tokens: int
    """Most tokens to generate, at least 1."""
    seed: int = 0
    """64-bit unsigned. The draw for output position i depends on (seed, i) alone."""
    temperature: float = 1.0
    """Below GREEDY_BELOW is greedy."""
    top_p: float = 1.0
    """In (0, 1]; 1 is off."""
    top_k: int = 0
    """0 is off."""
    min_p: float = 0.0
    """In [0, 1]: tokens below min_p x the largest probability are left out; 0 is off."""
    repetition_penalty: float = 1.0
    """> 0, over prompt and output; 1 is off (Keskar et al. 2019, arXiv:1909.05858)."""
    presence_penalty: float = 0.0
    """Subtracted once from each token that the output already holds (OpenAI API reference)."""
    frequency_penalty: float = 0.0
    """Subtracted once per occurrence in the output (OpenAI API reference)."""
    min_tokens: int = 0
    """End-of-sequence and stop tokens cannot be drawn before this many tokens."""
    stop_token_ids: tuple[int, ...] = ()
    """Tokens that end the request besides the model's own end-of-sequence tokens."""
    ignore_eos: bool = False
    """Generate on through end-of-sequence tokens."""
    logit_bias: dict[int, float] = {}
    """Token id to what is added to its logit."""
    logprobs: int | None = None
    """How many alternatives of each token come with their log probabilities (0 to MAX_LOGPROBS), besides that of the
    token itself; None for no log probabilities. They are those of the model, before all that this struct changes."""
    allowed_token_ids: tuple[int, ...] | None = None
    """No other token can be drawn; at least one of them is in the vocabulary. None allows all."""
    bad_words_token_ids: tuple[tuple[int, ...], ...] = ()
    """Sequences of at least one token: the last of a sequence cannot be drawn where the output ends with the rest."""
    prompt_logprobs: int | None = None
    """As `logprobs`, of each prompt token but the first. No prefix of such a prompt is looked up or stored."""
