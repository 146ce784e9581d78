"""uvicorn without its own loop: it polls ten times a second and handles signals, an API server does neither.

Written against uvicorn 0.34 to 0.54: `startup`, `on_tick`, `servers`, `server_state` and `lifespan` of its Server.
"""

import asyncio
import resource
import socket

import uvicorn
from starlette.types import ASGIApp

from api_server.http_protocol import MAX_CONNECTIONS, BoundedHttpProtocol, ConnectionState

KEEP_ALIVE_TIMEOUT_S = 75
"""Above the idle time of common load balancers' upstream connections (nginx and AWS ALB: 60 s), so that it is they
who close, and no request meets a connection that is just being closed."""
STALL_TIMEOUT_S = 60.0
"""A caller that has not read for so long is cut off and its generations end. Above pauses of networks and laptops."""
DRAINING_STALL_TIMEOUT_S = 5.0
"""The same while draining, which such a caller must not hold up."""
FILES_BESIDE_CONNECTIONS = 256
"""File descriptors for everything else."""


class HttpServer:
    """Owns the listening socket and the HTTP connections."""

    def __init__(self, app: ASGIApp) -> None:
        config = uvicorn.Config(
            app,
            http=BoundedHttpProtocol,
            interface="asgi3",
            loop="none",
            ws="none",
            lifespan="off",
            log_config=None,
            access_log=False,
            proxy_headers=False,
            server_header=False,
            timeout_keep_alive=KEEP_ALIVE_TIMEOUT_S,
        )
        config.load()
        self._server = uvicorn.Server(config)
        self._server.lifespan = config.lifespan_class(config)
        self._state = ConnectionState()
        self._server.server_state = self._state
        self._stall_timeout_s = STALL_TIMEOUT_S

    async def start(self, listener: socket.socket) -> None:
        """Accepts connections from now on."""
        await self.second_passed()
        await self._server.startup(sockets=[listener])

    async def second_passed(self) -> None:
        """To be called once a second: sets the Date header, cuts off callers that do not read."""
        await self._server.on_tick(0)
        now_s = asyncio.get_running_loop().time()
        for connection in self._connections():
            connection.cut_if_stalled(now_s, self._stall_timeout_s)

    def stop_listening(self) -> None:
        """Takes no new connections; those there are end as soon as their callers can know of it."""
        self._stall_timeout_s = DRAINING_STALL_TIMEOUT_S
        self._state.is_finishing = True
        for server in self._server.servers:
            server.close()
        for connection in self._connections():
            connection.finish()

    async def idle(self) -> None:
        """Waits until no request is being answered."""
        while self._state.tasks:
            await asyncio.wait(set(self._state.tasks))

    async def left(self) -> None:
        """Waits until no connection is open."""
        while self._state.connections:
            self._state.emptied.clear()
            await self._state.emptied.wait()

    async def close(self, timeout_s: float) -> None:
        """Ends what still runs and closes all connections; cuts off who has not read the rest by then."""
        for connection in self._connections():
            connection.end()
        try:
            async with asyncio.timeout(timeout_s):
                await self.idle()
                await self.left()
        except TimeoutError:
            for task in self._state.tasks:
                task.cancel()
            for connection in self._connections():
                connection.transport.abort()

    def _connections(self) -> list[BoundedHttpProtocol]:
        return [each for each in self._state.connections if isinstance(each, BoundedHttpProtocol)]


def raise_file_limit() -> None:
    """Lets this process open as many files as its connections may need, as far as it is allowed to."""
    wanted = MAX_CONNECTIONS + FILES_BESIDE_CONNECTIONS
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        allowed = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
        resource.setrlimit(resource.RLIMIT_NOFILE, (allowed, hard))
