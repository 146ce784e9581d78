"""Models that call tools and think, for the HTTP tests: their templates, and tokenizers with their special tokens."""

import functools

import msgspec
import tokenizers
from http_fakes import CHATML, byte_level_json, make_card
from tokenizers import AddedToken

from api_server.served_model import ServedModel

WEATHER = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "The weather of a city",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}, "days": {"type": "integer"}}},
    },
}
NOW = {"type": "function", "function": {"name": "now"}}

# In the style of Qwen 3: tools as JSON in front, calls and their results in the history, thoughts.
TOOL_TEMPLATE = (
    "{% if tools %}{% for tool in tools %}{{ tool | tojson }}\n{% endfor %}"
    '<tool_call>{"name": <name>, "arguments": <arguments>}</tool_call>{% endif %}'
    "{% for message in messages %}<|im_start|>{{ message.role }}\n"
    "{% if message.reasoning_content %}<think>{{ message.reasoning_content }}</think>{% endif %}{{ message.content }}"
    "{% for call in message.tool_calls or [] %}<tool_call>{{ call.function.name }}("
    "{% for key, value in call.function.arguments | items %}{{ key }}={{ value }};{% endfor %})</tool_call>{% endfor %}"
    "<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n"
    "{% if enable_thinking is defined and not enable_thinking %}<think>\n\n</think>\n\n{% endif %}{% endif %}"
)
OPENED = CHATML.replace("assistant\n", "assistant\n<think>\n") + "{# </think> #}"
HARMONY = (
    CHATML.replace("assistant\n", "assistant") + "{{ tools }}{# <|channel|>analysis commentary #}{{ reasoning_effort }}"
)


@functools.cache
def model_with(template: str, special_tokens: tuple[str, ...] = ()) -> ServedModel:
    """The byte-level model with another template, and special tokens from id 340 on."""
    tokenizer = tokenizers.Tokenizer.from_str(byte_level_json())
    tokenizer.add_special_tokens([AddedToken(token, special=True) for token in special_tokens])
    card = make_card(
        chat_template=template,
        tokenizer_json=tokenizer.to_str(),
        vocab_size=400,
        max_model_len=4000,
    )
    return ServedModel(msgspec.structs.replace(card, name="tools"), "hash")
