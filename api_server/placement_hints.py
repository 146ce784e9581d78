"""Where a caller says that a request had better run.

Header X-Data-Parallel-Rank (as in vLLM) names the engine core, by the index that its metrics are labelled with. Header
X-Session-Id, or the body's session_id or prompt_cache_key, name a session, whose requests had better meet again.
"""

import msgspec
from starlette.datastructures import Headers

from api_server.errors import RANK_HEADER, invalid
from api_server.placement import Placement

SESSION_HEADER = "x-session-id"
MAX_SESSION_KEY_CHARS = 256
MAX_RANK_DIGITS = 6


def placement_by_headers(headers: Headers) -> Placement:
    """What the headers of a request say. Raises ApiError naming the header."""
    rank = headers.get(RANK_HEADER)
    if rank is not None and not _is_rank(rank):
        raise invalid(f"{RANK_HEADER} must be the index of an engine core: an integer from 0 on", RANK_HEADER)
    session_key = headers.get(SESSION_HEADER)
    if session_key is not None:
        check_session_key(session_key, SESSION_HEADER)
    return Placement(session_key or "", -1 if rank is None else int(rank))


def check_session_key(session_key: str, param: str) -> None:
    """Raises ApiError, naming `param`, for one that is empty or too long."""
    if not 1 <= len(session_key) <= MAX_SESSION_KEY_CHARS:
        raise invalid(f"{param} must have 1 to {MAX_SESSION_KEY_CHARS} characters", param)


def headers_first(by_headers: Placement, by_body: Placement) -> Placement:
    """What the headers say, and for the rest what the body says."""
    session_key = by_headers.session_key or by_body.session_key
    return msgspec.structs.replace(by_body, session_key=session_key, engine_rank=by_headers.engine_rank)


def _is_rank(text: str) -> bool:
    return text.isascii() and text.isdigit() and len(text) <= MAX_RANK_DIGITS
