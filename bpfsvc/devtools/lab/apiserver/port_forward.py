"""``pods/NAME/portforward``: a WebSocket to a port of a Pod, as the kubelet serves it.

A server of Kubernetes hands the request on to the kubelet. There is no kubelet here: ``dial`` of
the server connects to the port. Messages have at most :data:`_PIECE` bytes, as the kubelet's.
"""

from __future__ import annotations

import base64
import hashlib
import re
import socket
import struct
import threading
from collections.abc import Callable
from contextlib import suppress
from io import BufferedIOBase
from typing import NamedTuple

Dial = Callable[[str, str, int], socket.socket]
"""Connects to a port of the Pod of a namespace and name; raises ``OSError``."""

PROTOCOL = "v4.channel.k8s.io"
SUBRESOURCE = "pods/portforward"

_PATH = re.compile(r"/api/v1/namespaces/([^/]+)/pods/([^/]+)/portforward")
_GUID = "258EAFA5-E914-47DA-95CA-C5AB0DC85B11"  # RFC 6455, section 1.3
_BINARY, _CLOSE = 2, 8
_DATA, _PROBLEM = 0, 1
_PIECE = 32 * 1024


class Forwarded(NamedTuple):
    """The Pod of a path."""

    namespace: str
    name: str


def parse(path: str) -> Forwarded | None:
    """Return the Pod whose port is to be forwarded; None for another path."""
    match = _PATH.fullmatch(path)
    return Forwarded(*match.groups()) if match else None


def handshake(key: str) -> tuple[tuple[str, str], ...]:
    """Return the headers that accept a client's key."""
    accepted = base64.b64encode(hashlib.sha1((key + _GUID).encode()).digest()).decode()
    return (
        ("Upgrade", "websocket"),
        ("Connection", "Upgrade"),
        ("Sec-WebSocket-Accept", accepted),
        ("Sec-WebSocket-Protocol", PROTOCOL),
    )


def serve(
    reading: BufferedIOBase, connection: socket.socket, dial: Dial, pod: Forwarded, port: int
) -> None:
    """Carry bytes between a client, after the handshake, and a port until one of them ends."""
    number = struct.pack("<H", port)
    for channel in (_DATA, _PROBLEM):
        connection.sendall(_frame(bytes([channel]) + number))
    try:
        target = dial(*pod, port)
    except OSError as error:
        text = f"error forwarding port {port} to pod {pod.name}: {error}"
        connection.sendall(_frame(bytes([_PROBLEM]) + text.encode()))
        connection.sendall(_frame(b"", _CLOSE))
        return
    with target:
        there = threading.Thread(target=_send_on, args=(reading, target), daemon=True)
        there.start()
        with suppress(OSError):
            while data := target.recv(_PIECE):
                connection.sendall(_frame(bytes([_DATA]) + data))
            connection.sendall(_frame(b"", _CLOSE))
        with suppress(OSError):
            connection.shutdown(socket.SHUT_RDWR)
        there.join()


def _send_on(reading: BufferedIOBase, target: socket.socket) -> None:
    with suppress(OSError, EOFError):
        while (message := _message(reading)) is not None:
            if message[:1] == bytes([_DATA]):
                target.sendall(message[1:])


def _message(reading: BufferedIOBase) -> bytes | None:
    """Return a message of a client; None if the client closes."""
    first, second = _exactly(reading, 2)
    length = second & 0x7F
    if length >= 126:
        size, code = (2, ">H") if length == 126 else (8, ">Q")
        (length,) = struct.unpack(code, _exactly(reading, size))
    mask = _exactly(reading, 4)  # a client always masks
    data = bytes(byte ^ mask[at % 4] for at, byte in enumerate(_exactly(reading, length)))
    return None if first & 0x0F == _CLOSE else data


def _exactly(reading: BufferedIOBase, size: int) -> bytes:
    data = reading.read(size)
    if len(data) < size:
        raise EOFError
    return data


def _frame(data: bytes, code: int = _BINARY) -> bytes:
    """Return a message of the server in one frame."""
    if len(data) < 126:
        return bytes([0x80 | code, len(data)]) + data
    return bytes([0x80 | code, 126]) + struct.pack(">H", len(data)) + data
