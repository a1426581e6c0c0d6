"""An HTTP client of few lines, which can also send malformed requests."""

from __future__ import annotations

import socket

SECONDS = 10
"""The longest wait for an immediate response."""


def connect(port: int, host: str = "127.0.0.1", seconds: float = SECONDS) -> socket.socket:
    return socket.create_connection((host, port), timeout=seconds)


def read_all(client: socket.socket) -> bytes:
    """Return everything that the server sends until it closes the connection."""
    parts = []
    while part := client.recv(65536):
        parts.append(part)
    return b"".join(parts)


def ask(
    port: int,
    path: str,
    *headers: str,
    method: str = "GET",
    host: str = "127.0.0.1",
    host_header: str = "here",
    seconds: float = SECONDS,
) -> bytes:
    """Return the whole response."""
    lines = (f"{method} {path} HTTP/1.1", f"Host: {host_header}", *headers, "", "")
    with connect(port, host, seconds) as client:
        client.sendall("\r\n".join(lines).encode())
        return read_all(client)


def body(answer: bytes) -> bytes:
    return answer.partition(b"\r\n\r\n")[2]
