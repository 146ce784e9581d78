"""Request bodies, in the form of the OpenAI API reference."""

import msgspec

from benchmarks.config import ServeBenchConfig
from benchmarks.workload import Prompt


class BodyMaker:
    """Makes request bodies for one model with the options of a configuration."""

    def __init__(self, config: ServeBenchConfig, model: str) -> None:
        """Raises ValueError when the extra body is not a JSON object."""
        self._max_tokens = config.max_tokens
        self._common: dict[str, object] = {"model": model, "temperature": config.temperature}
        self._extra = parse_extra_body(config.extra_body)
        self._length: dict[str, object] = {}
        if config.min_tokens is not None:
            self._length["min_tokens"] = config.min_tokens
        if config.ignore_eos:
            self._length["ignore_eos"] = True
        if config.stream:
            self._streaming: dict[str, object] = {"stream": True, "stream_options": {"include_usage": True}}
        else:
            self._streaming = {"stream": False}

    def body(self, prompt: Prompt) -> bytes:
        """Of a request to be measured."""
        fields = self._fields(prompt, prompt.max_tokens or self._max_tokens)
        return msgspec.json.encode({**fields, **self._length, **self._streaming, **self._extra})

    def probe_body(self, prompt: Prompt) -> bytes:
        """Of a request that only has the prompt's tokens counted: one token, not streamed."""
        extra = {name: value for name, value in self._extra.items() if name not in _NOT_IN_PROBES}
        return msgspec.json.encode({**self._fields(prompt, 1), **extra, "stream": False})

    def _fields(self, prompt: Prompt, max_tokens: int) -> dict[str, object]:
        said = {"prompt": prompt.prompt} if prompt.messages is None else {"messages": prompt.messages}
        return {**self._common, **said, "max_tokens": max_tokens}


_NOT_IN_PROBES = frozenset({"stream", "stream_options", "max_tokens", "max_completion_tokens", "min_tokens"})


def parse_extra_body(text: str | None) -> dict[str, object]:
    """The JSON object in `text`, empty for None. Raises ValueError."""
    if text is None:
        return {}
    try:
        return msgspec.json.decode(text, type=dict[str, object])
    except msgspec.MsgspecError as error:
        raise ValueError(f"--extra-body is not a JSON object: {error}") from error
