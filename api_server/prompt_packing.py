"""Packing prompts for the wire, once for all choices of a prompt: each keeps its prompt until it ends."""

from collections.abc import Sequence

from protocol.codec import pack_token_ids


class PromptPacker:
    """Remembers the last prompt, for its choices come one after another, with the very same list of ids."""

    def __init__(self) -> None:
        self._last_ids: Sequence[int] = ()
        self._last_packed = b""

    def pack(self, prompt_ids: Sequence[int]) -> bytes:
        """See `protocol.codec.pack_token_ids`. The ids must not be changed afterwards."""
        if prompt_ids is not self._last_ids:
            self._last_ids, self._last_packed = prompt_ids, pack_token_ids(prompt_ids)
        return self._last_packed
