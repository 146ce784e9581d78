"""The border of one generation request: body in, answer out, streamed or whole.

Everything before the first byte of the answer may raise and becomes a status code; afterwards errors are events.
A failed stream ends with an `{"error": ...}` event and without [DONE]: OpenAI's clients raise on the former and
would take the latter for success.
"""

import logging

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from api_server.answer_format import Usage, WholeChoice, make_usage
from api_server.auth import tenant_of
from api_server.choice_text import OUT_OF_TIME, Finish
from api_server.choices import Choices
from api_server.deadline import out_of_time, read_deadline
from api_server.disconnect import cancel_on_disconnect
from api_server.errors import RETRY_AFTER_S, ApiError, ErrorKind, encode_error, from_domain
from api_server.generation_backend import GenerationBackend, GenerationFailed
from api_server.json_body import check_headers, split_fields
from api_server.keep_alive import KeepAlive
from api_server.parsers.events import Event
from api_server.placement_hints import placement_by_headers
from api_server.planned_answer import PlannedAnswer, Planner
from api_server.sse import EventStream, event
from api_server.token_entries import TokenEntry
from api_server.uploads import Uploads

logger = logging.getLogger("shoal.api_server")


class GenerationEndpoint:
    """ASGI application of one route."""

    def __init__(
        self,
        backend: GenerationBackend,
        planner: Planner,
        uploads: Uploads,
        request_timeout_s: float | None = None,
        keep_alive_s: float = 0.0,
    ) -> None:
        """`request_timeout_s` is for requests that do not say themselves how long they may take; `keep_alive_s` as in
        KeepAlive."""
        self._keep_alive_s = keep_alive_s
        self._backend = backend
        self._request_timeout_s = request_timeout_s
        self._planner = planner
        self._uploads = uploads

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if not self._backend.taking:
            raise ApiError(ErrorKind.DRAINING, "this server is shutting down", retry_after_s=RETRY_AFTER_S)
        request = Request(scope, receive)
        check_headers(request.headers)
        placement = placement_by_headers(request.headers)
        deadline = read_deadline(request.headers, self._request_timeout_s)
        async with deadline.enforced(), self._uploads.body(request) as body:
            planned = await cancel_on_disconnect(receive, self._planner(split_fields(body), self._backend))
        plan = msgspec.structs.replace(planned.plan, deadline_s=deadline.wall_s, tenant=tenant_of(scope))
        planned = msgspec.structs.replace(planned, plan=plan)
        planned = planned.placed(placement)
        answer = self._stream(planned, send) if planned.stream else self._whole(planned, scope, receive, send)
        await cancel_on_disconnect(receive, answer)

    async def _whole(self, planned: PlannedAnswer, scope: Scope, receive: Receive, send: Send) -> None:
        parts: list[list[Event]] = [[] for _ in planned.plan.choices]
        tokens: list[list[TokenEntry]] = [[] for _ in planned.plan.choices]
        prompts: dict[int, list[TokenEntry]] = {}
        finishes: dict[int, Finish] = {}
        async with Choices(self._backend, planned.plan) as choices:
            await choices.submit()
            while choices.running:
                for new in await choices.next():
                    parts[new.index] += new.delta.events
                    tokens[new.index] += new.delta.tokens
                    if new.prompt:
                        prompts[new.index] = new.prompt
                    if new.delta.finish is not None:
                        finishes[new.index] = new.delta.finish
        if choices.completion_tokens == 0 and OUT_OF_TIME in finishes.values():
            raise out_of_time()
        whole = [
            WholeChoice(found, finishes[index], tokens[index], prompts.get(index, []))
            for index, found in enumerate(parts)
        ]
        body = planned.format.whole(whole, _usage(planned, choices))
        await Response(body, media_type="application/json")(scope, receive, send)

    async def _stream(self, planned: PlannedAnswer, send: Send) -> None:
        stream = EventStream(send)
        try:
            last = await self._stream_until_last(planned, stream)
        except GenerationFailed as error:
            if not stream.started:
                raise
            last = event(encode_error(from_domain(error)))
        except Exception:
            if not stream.started:
                raise
            logger.exception("stream failed")
            last = event(encode_error(ApiError(ErrorKind.INTERNAL, "internal server error")))
        # After the clean-up: uvicorn reports "disconnect" once the last byte is out, which would cut it short.
        await stream.end(last)

    async def _stream_until_last(self, planned: PlannedAnswer, stream: EventStream) -> bytes:
        """Streams all but the last events, which come back; the choices are over by then."""
        async with Choices(self._backend, planned.plan) as choices:
            await choices.submit()
            # Whether a grammar can be used is known with the first token: until then an error is a status code.
            first = [] if planned.plan.output_grammar is None else await choices.next()
            await stream.start()
            keep_alive = KeepAlive(stream, self._keep_alive_s)
            usage = _usage(planned, choices) if planned.continuous_usage else None
            events = planned.format.opening() + b"".join([planned.format.delta(delta, usage) for delta in first])
            while choices.running:
                await stream.write(events)
                deltas = await keep_alive.during(choices.next())
                usage = _usage(planned, choices) if planned.continuous_usage else None
                events = b"".join([planned.format.delta(delta, usage) for delta in deltas])
        return events + planned.format.closing(_usage(planned, choices))


def _usage(planned: PlannedAnswer, choices: Choices) -> Usage:
    return make_usage(planned.plan.prompt_tokens, choices.completion_tokens, choices.cached_tokens)
