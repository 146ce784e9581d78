"""Telling a request that kills engine cores from those that only happened to be there.

All that an engine core had when it died goes on elsewhere at once, for nearly all of it is innocent, and the first new
token clears a request: whatever happened, it can be computed. One that saw SUSPECT_AFTER_DEATHS engine cores die
without a new token between is a suspect, and so may be those beside it in the same step. In the whole cluster one
suspect runs at a time; the next one has its turn when it is cleared or has ended. So the third death in a row finds
the request that caused it without another suspect beside it: its API server, which knows of what the engine cores died
(api_server.verdict), fails it, and it alone.
"""

from protocol.messages import EngineCoreRequest, RequestKey

SUSPECT_AFTER_DEATHS = 2


def is_suspect(request: EngineCoreRequest) -> bool:
    """Whether it may run only while no other suspect does."""
    return request.deaths >= SUSPECT_AFTER_DEATHS


class Trial:
    """Owner of whose turn it is."""

    def __init__(self) -> None:
        self._running: RequestKey | None = None

    @property
    def is_free(self) -> bool:
        """Whether a suspect may run."""
        return self._running is None

    def began(self, request: EngineCoreRequest) -> None:
        """The request has been given to an engine core."""
        if is_suspect(request):
            assert self._running is None, "two suspects at once"
            self._running = request.key

    def over(self, key: RequestKey) -> None:
        """The request is cleared or no longer there; no effect unless it is the suspect that runs."""
        if self._running == key:
            self._running = None
