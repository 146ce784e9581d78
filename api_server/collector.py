"""Where a generation's tokens wait for the HTTP side: one slot that merges, never a queue."""

import asyncio

from api_server.client_events import Deliver
from api_server.generation_backend import GenerationFailed, TokenDelta
from protocol.identifiers import RequestId
from protocol.logprobs import TokenLogprobs
from protocol.messages import FinishReason


class TokenCollector:
    """Implements `generation_backend.Collector`.

    A reader that is slow, or not there, costs its own unread tokens and nothing else: at most the generation's
    max_tokens, which the client core holds engine cores to and which the model's context bounds. At 36 bytes a
    token (a list entry and an int) an unread context of 131,072 tokens has 4.5 MiB; with 20 alternatives of each
    token it is some 200 MiB, which the cut of callers that do not read bounds in time.
    """

    def __init__(self, request_id: RequestId) -> None:
        self.request_id = request_id
        self._token_ids: list[int] = []
        self._logprobs: list[TokenLogprobs] = []
        self._prompt_logprobs: list[TokenLogprobs] = []
        self._finish_reason: FinishReason | None = None
        self._stop_reason: int | None = None
        self._cached_tokens = 0
        self._failure: GenerationFailed | None = None
        self._wake = asyncio.Event()

    @property
    def num_unread(self) -> int:
        """Tokens that nobody has taken yet."""
        return len(self._token_ids)

    def put(self, delivery: Deliver) -> None:
        """Adds new tokens, or the end, or both."""
        assert self._finish_reason is None and self._failure is None, "nothing follows the end"
        self._token_ids += delivery.token_ids
        self._logprobs += delivery.logprobs
        self._prompt_logprobs += delivery.prompt_logprobs
        self._finish_reason = delivery.finish_reason
        self._stop_reason = delivery.stop_reason
        self._cached_tokens = self._cached_tokens or delivery.cached_tokens
        self._wake.set()

    def fail(self, failure: GenerationFailed) -> None:
        """Ends the generation; the reader gets what tokens there are first."""
        assert self._finish_reason is None and self._failure is None, "nothing follows the end"
        self._failure = failure
        self._wake.set()

    async def get(self) -> TokenDelta:
        """See `generation_backend.Collector`."""
        await self._wake.wait()
        if not self._token_ids and self._finish_reason is None:
            assert self._failure is not None
            raise self._failure
        delta = TokenDelta(
            self._token_ids,
            self._finish_reason,
            self._stop_reason,
            self._cached_tokens,
            self._logprobs,
            self._prompt_logprobs,
        )
        self._token_ids, self._logprobs, self._prompt_logprobs = [], [], []
        if self._failure is None:
            self._wake.clear()
        return delta
