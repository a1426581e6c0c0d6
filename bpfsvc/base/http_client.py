"""HTTP GET to a server of this node: one request, one answer, and the connection ends.

Commands ask the agent, and the agent asks programs that listen at its ports. The standard library's
``http.client`` imports the parser of e-mails, which an agent needs for nothing else.
"""

from __future__ import annotations

import errno
import json
import os
import socket
import time
from typing import NamedTuple

_LOOPBACK_OF = {"": "127.0.0.1", "0.0.0.0": "127.0.0.1", "::": "::1"}
"""Wildcard addresses -> the address at which a server that listens there is asked."""

_MAX_BYTES = 1 << 26
"""Of an answer: one that names ten thousand endpoints has a few million."""

_PART_BYTES = 1 << 16


class Answer(NamedTuple):
    """An answer; ``server`` is the header of that name, "" without it."""

    status: int
    server: str
    body: bytes


def connect(address: tuple[str, int], seconds: float) -> socket.socket:
    """Return a connection to a server; raise ``OSError`` if there is none.

    ``seconds`` limits the connecting, and later the answer.
    """
    host, port = address
    return socket.create_connection((_LOOPBACK_OF.get(host, host), port), timeout=seconds)


def begin_connect(address: tuple[str, int]) -> socket.socket:
    """Return a socket that does not block and connects to a server; raise ``OSError`` if it cannot.

    The socket is ready to write when it is connected, or when that has failed.
    """
    host, port = address
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    client = socket.socket(family, socket.SOCK_STREAM | socket.SOCK_NONBLOCK)
    code = client.connect_ex((_LOOPBACK_OF.get(host, host), port))
    if code in (0, errno.EINPROGRESS):
        return client
    client.close()
    raise OSError(code, os.strerror(code))


def encode_get(path: str) -> bytes:
    """Return the text of a GET of ``path``."""
    return f"GET {path} HTTP/1.0\r\nHost: localhost\r\n\r\n".encode()


def get(client: socket.socket, path: str) -> Answer:
    """Return the answer to a GET of ``path``, within the timeout of ``client``.

    Raises ``OSError`` if there is no answer, or if the answer is not HTTP.
    """
    seconds = client.gettimeout()
    ends = None if seconds is None else time.monotonic() + seconds
    client.sendall(encode_get(path))
    reader = AnswerReader()
    answer: Answer | None = None
    while answer is None:
        if ends is not None:
            client.settimeout(max(0.001, ends - time.monotonic()))
        answer = reader.feed(client.recv(_PART_BYTES))
    return answer


class AnswerReader:
    """Reads an answer that arrives in parts."""

    def __init__(self) -> None:
        self._received = bytearray()
        self._answer: Answer | None = None
        self._length: int | None = None

    def feed(self, part: bytes) -> Answer | None:
        """Take what has arrived, b"" for the end; return the answer once it is complete.

        Raises ``OSError`` if it ends too early, is too long, or is not HTTP.
        """
        self._received += part
        if self._answer is None and b"\r\n\r\n" in self._received:
            head, _, self._received = self._received.partition(b"\r\n\r\n")
            self._answer, self._length = _parse_head(head.decode("latin-1"))
        if len(self._received) > _MAX_BYTES:
            raise OSError(f"the answer has more than {_MAX_BYTES} bytes")
        has_all = self._length is not None and len(self._received) >= self._length
        if part and not has_all:
            return None
        if self._answer is None or (self._length is not None and not has_all):
            raise OSError("the connection ended before the answer")
        return self._answer._replace(body=bytes(self._received[: self._length]))


def ask_json(address: tuple[str, int], path: str, seconds: float = 1.0) -> object:
    """Return the JSON value that a server answers with any status; None for any other answer."""
    try:
        with connect(address, seconds) as client:
            value: object = json.loads(get(client, path).body)
    except (OSError, ValueError):
        return None
    return value


def _parse_head(head: str) -> tuple[Answer, int | None]:
    """Return the answer without its body, and the length of the body if that is given."""
    first, *lines = head.split("\r\n")
    words = first.split()
    if len(words) < 2 or not words[0].startswith("HTTP/") or not words[1].isdecimal():
        raise OSError("the answer is not HTTP")
    pairs = (line.partition(":") for line in lines)
    headers = {name.strip().lower(): value.strip() for name, _, value in pairs}
    length = headers.get("content-length", "")
    answer = Answer(int(words[1]), headers.get("server", ""), b"")
    return answer, int(length) if length.isdecimal() else None
