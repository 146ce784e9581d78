"""Request fields that this version does not act on: refused unless they say "off", never silently ignored.

Fields that no answer depends on are accepted without effect instead, and therefore not listed: user, metadata,
safety_identifier, prompt_cache_retention.
"""

from collections.abc import Mapping

from api_server.json_body import NEVER, Switch

_COMMON = {
    "store": Switch((False,)),
    "service_tier": Switch(("auto", "default")),
    "prompt_logprobs": NEVER,
    "logprob_token_ids": NEVER,
    "use_beam_search": Switch((False,)),
    "length_penalty": Switch((1, 1.0)),
    "bad_words": Switch(([],)),
    "allowed_token_ids": NEVER,
    "truncate_prompt_tokens": NEVER,
    "spaces_between_special_tokens": Switch((True,)),
    "guided_json_object": NEVER,
    "guided_whitespace_pattern": NEVER,
    "guided_decoding_backend": NEVER,
    "return_token_ids": Switch((False,)),
    "return_tokens_as_token_ids": Switch((False,)),
    "xtc_probability": Switch((0, 0.0)),
    "mirostat": Switch((0,)),
}

COMPLETION_SWITCHES: Mapping[str, Switch] = _COMMON | {
    "best_of": Switch((1,)),
    "echo": Switch((False,)),
    "logprobs": Switch((False,)),
    "prompt_embeds": NEVER,
    "suffix": Switch(("",)),
}
"""/v1/completions."""

CHAT_SWITCHES: Mapping[str, Switch] = _COMMON | {
    "audio": NEVER,
    "best_of": Switch((1,)),
    "chat_template": NEVER,
    "documents": NEVER,
    "echo": Switch((False,)),
    "function_call": Switch(("none",)),
    "functions": Switch(([],)),
    "logprobs": Switch((False,)),
    "modalities": Switch((["text"],)),
    "prediction": NEVER,
    "separate_reasoning": Switch((True,)),
    "thinking": NEVER,
    "thinking_budget": NEVER,
    "thinking_token_budget": NEVER,
    "top_logprobs": Switch((0,)),
    "verbosity": NEVER,
    "web_search_options": NEVER,
}
"""/v1/chat/completions."""
