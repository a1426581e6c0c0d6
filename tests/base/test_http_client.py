"""The HTTP client against servers that answer byte for byte what a test says."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from bpfsvc.base.http_client import Answer, ask_json, connect, get


@contextmanager
def server(answer: bytes, *, ends: bool = True) -> Iterator[tuple[str, int]]:
    """Serve one client; ``ends``: close its connection after the answer."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        done = threading.Event()

        def serve() -> None:
            client, _ = listener.accept()
            with client:
                client.recv(4096)
                client.sendall(answer)
                if not ends:
                    done.wait(10)

        thread = threading.Thread(target=serve)
        thread.start()
        yield "0.0.0.0", listener.getsockname()[1]
        done.set()
        thread.join()


def asked(answer: bytes, *, ends: bool = True, seconds: float = 5) -> Answer:
    with server(answer, ends=ends) as address, connect(address, seconds) as client:
        return get(client, "/")


@pytest.mark.parametrize("ends", [False, True])
def test_an_answer_of_known_length_is_complete_without_an_end(ends: bool) -> None:
    raw = b"HTTP/1.1 503 Busy\r\nSERVER: me/1 \r\nContent-Length: 3\r\n\r\nyes, and more"
    assert asked(raw, ends=ends) == Answer(503, "me/1", b"yes")


def test_without_a_length_the_end_completes_an_answer() -> None:
    assert asked(b"HTTP/1.0 200 OK\r\n\r\na\r\n\r\nb") == Answer(200, "", b"a\r\n\r\nb")


@pytest.mark.parametrize(
    "answer",
    [
        b"",
        b"HTTP/1.1 200 OK\r\nServer: x\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\nyes",
        b"220 mail.example\r\n\r\n",
        b"HTTP/1.1\r\n\r\n",
    ],
)
def test_anything_else_is_an_error(answer: bytes) -> None:
    with pytest.raises(OSError, match=r"ended before|not HTTP"):
        asked(answer)


def test_a_server_that_sends_nothing_is_left_in_time() -> None:
    with pytest.raises(TimeoutError):
        asked(b"", ends=False, seconds=0.05)


@pytest.mark.parametrize(
    ("body", "value"), [(b'{"a": 1}', {"a": 1}), (b"ok", None), (b"\xff", None), (b"null", None)]
)
def test_json_is_a_value_and_any_other_answer_is_none(body: bytes, value: object) -> None:
    with server(b"HTTP/1.1 503 Busy\r\n\r\n" + body) as address:
        assert ask_json(address, "/") == value
    assert ask_json(address, "/") is None
