"""Asking a server of pages as anybody may, well-behaved or not."""

from __future__ import annotations

import socket

SECONDS = 10
"""How long to wait for what must come at once."""


def connect(port: int, host: str = "127.0.0.1") -> socket.socket:
    return socket.create_connection((host, port), timeout=SECONDS)


def hear(peer: socket.socket) -> bytes:
    """Read until the other side has said everything."""
    parts = []
    while part := peer.recv(65536):
        parts.append(part)
    return b"".join(parts)


def ask(port: int, path: str, *headers: str, method: str = "GET", host: str = "127.0.0.1") -> bytes:
    """Give the whole answer."""
    lines = (f"{method} {path} HTTP/1.1", "Host: here", *headers, "", "")
    with connect(port, host) as peer:
        peer.sendall("\r\n".join(lines).encode())
        return hear(peer)


def body(answer: bytes) -> bytes:
    return answer.partition(b"\r\n\r\n")[2]
