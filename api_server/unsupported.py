"""Request fields that this version does not act on: refused unless they say "off", never silently ignored.

Fields that no answer depends on are accepted without effect instead, in any form.
"""

from collections.abc import Mapping

from api_server.json_body import NEVER, Switch

_COMMON = {
    "store": Switch((False,)),
    "service_tier": Switch(("auto", "default")),
    "logprob_token_ids": NEVER,
    "use_beam_search": Switch((False,)),
    "length_penalty": Switch((1, 1.0)),
    "guided_json_object": NEVER,
    "guided_whitespace_pattern": NEVER,
    "guided_decoding_backend": NEVER,
    "truncation_side": Switch(("left",)),
    "watermarking": Switch((False,)),
    "return_prompt_text": Switch((False,)),
    "repetition_detection": NEVER,
    "kv_transfer_params": NEVER,
    "ec_transfer_params": NEVER,
    "vllm_xargs": Switch(({},)),
    "stream_interval": Switch((1,)),
    "xtc_probability": Switch((0, 0.0)),
    "mirostat": Switch((0,)),
}

COMPLETION_SWITCHES: Mapping[str, Switch] = _COMMON | {
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
    "media_io_kwargs": Switch(({},)),
    "mm_processor_kwargs": Switch(({},)),
    "modalities": Switch((["text"],)),
    "prediction": NEVER,
    "separate_reasoning": Switch((True,)),
    "thinking": NEVER,
    "thinking_budget": NEVER,
    "thinking_token_budget": NEVER,
    "verbosity": NEVER,
    "web_search_options": NEVER,
}
"""/v1/chat/completions."""

WITHOUT_EFFECT = (
    "user",
    "metadata",
    "safety_identifier",
    "prompt_cache_retention",
    "spaces_between_special_tokens",
    "request_id",
)
"""Of both routes; docs/http-api.md says why."""
