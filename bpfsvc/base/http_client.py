"""HTTP GET to a server of this node: one request, one answer, and the connection ends.

Commands ask the agent, and the agent asks programs that listen at its ports. The standard library's
``http.client`` imports the parser of e-mails, which an agent needs for nothing else.
"""

from __future__ import annotations

import json
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


def get(client: socket.socket, path: str) -> Answer:
    """Return the answer to a GET of ``path``, within the timeout of ``client``.

    Raises ``OSError`` if there is no answer, or if the answer is not HTTP.
    """
    seconds = client.gettimeout()
    ends = None if seconds is None else time.monotonic() + seconds
    client.sendall(f"GET {path} HTTP/1.0\r\nHost: localhost\r\n\r\n".encode())
    received = bytearray()
    answer: Answer | None = None
    length: int | None = None
    while length is None or len(received) < length:
        if ends is not None:
            client.settimeout(max(0.001, ends - time.monotonic()))
        part = client.recv(_PART_BYTES)
        received += part
        if answer is None and b"\r\n\r\n" in received:
            head, _, received = received.partition(b"\r\n\r\n")
            answer, length = _parse_head(head.decode("latin-1"))
        if len(received) > _MAX_BYTES:
            raise OSError(f"the answer has more than {_MAX_BYTES} bytes")
        if not part:
            break
    if answer is None or (length is not None and len(received) < length):
        raise OSError("the connection ended before the answer")
    return answer._replace(body=bytes(received[:length]))


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
