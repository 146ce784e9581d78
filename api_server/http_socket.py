"""The listening socket: an API server's own, or one that all API servers of a machine inherit.

A supervisor binds it once for all of them, instead of one socket each with SO_REUSEPORT: the accept queue outlives an
API server (with SO_REUSEPORT the kernel resets what waited in the dead one's queue), a port that is taken is found
before anything starts, and it works on macOS, where SO_REUSEPORT does not spread connections.
"""

import socket

BACKLOG = 2048
"""Connections that wait for an API server; the kernel cuts it to its own limit (Linux 4096, macOS 128)."""


class BindError(Exception):
    """The address cannot be listened on; the message says why."""


def bind_http_socket(host: str, port: int) -> socket.socket:
    """A listening socket, not inheritable; a port of 0 takes a free one. Raises BindError."""
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
    except socket.gaierror as error:
        raise BindError(f"host {host!r} is unknown: {error.strerror}") from error
    listening = socket.socket(family, kind, protocol)
    listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listening.bind(address)
        listening.listen(BACKLOG)
    except OSError as error:
        listening.close()
        raise BindError(f"cannot listen on {host} port {port}: {error.strerror}; choose another with --port") from error
    return listening


def inherited_http_socket(fd: int) -> socket.socket:
    """The listening socket behind this file descriptor, no longer inheritable. Raises BindError."""
    try:
        listening = socket.socket(fileno=fd)
        listening.getsockname()
    except OSError as error:
        raise BindError(f"file descriptor {fd} is no socket to listen on: {error.strerror}") from error
    listening.set_inheritable(False)
    return listening


def url_of(listening: socket.socket) -> str:
    """`http://host:port` with the port that was really taken."""
    host, port = listening.getsockname()[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"
