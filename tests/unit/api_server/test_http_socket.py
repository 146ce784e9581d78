"""One listening socket, and a clear word when it cannot be had."""

import socket
from pathlib import Path

import pytest

from api_server.http_socket import BindError, bind_http_socket, inherited_http_socket, url_of


def test_free_port_is_taken_and_named() -> None:
    with bind_http_socket("127.0.0.1", 0) as listening:
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


def test_inherited_socket_is_served_and_not_handed_on() -> None:
    with socket.create_server(("127.0.0.1", 0)) as ours:
        ours.set_inheritable(True)
        with inherited_http_socket(ours.detach()) as listening:
            assert not listening.get_inheritable()
            with socket.create_connection(listening.getsockname(), timeout=5):
                pass


def test_file_descriptor_that_is_no_socket_is_named(tmp_path: Path) -> None:
    with (tmp_path / "file").open("w") as file, pytest.raises(BindError, match=f"file descriptor {file.fileno()} "):
        inherited_http_socket(file.fileno())
