"""One listening socket, and a clear word when it cannot be had."""

import socket

import pytest

from deploy.http_socket import BindError, bind_http_socket, url_of


def test_free_port_is_taken_and_named() -> None:
    with bind_http_socket("127.0.0.1", 0) as listening:
        assert listening.get_inheritable()
        port = listening.getsockname()[1]
        assert url_of(listening) == f"http://127.0.0.1:{port}"
        with socket.create_connection(("127.0.0.1", port), timeout=5):
            pass


def test_taken_port_is_named() -> None:
    with bind_http_socket("127.0.0.1", 0) as first:
        port = first.getsockname()[1]
        with pytest.raises(BindError, match=rf"127.0.0.1 port {port}: .*--port"):
            bind_http_socket("127.0.0.1", port)


def test_host_that_is_no_host_is_named() -> None:
    with pytest.raises(BindError, match=r"no\.such\.host\.invalid"):
        bind_http_socket("no.such.host.invalid", 0)
