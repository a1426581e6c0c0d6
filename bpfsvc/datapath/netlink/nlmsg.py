"""Messages of netlink and their attributes (``linux/netlink.h``), packed and read here.

pyroute2 takes 50 times as long for each message: it is used where the messages are few.
"""

from __future__ import annotations

import errno
import os
import socket
import struct
from collections.abc import Collection, Iterator
from typing import NamedTuple

ERROR, DONE = 2, 3
"""Kinds of messages that end an answer."""

REQUEST, ACK, DUMP = 0x1, 0x4, 0x300
CREATE_NEW = 0x600
"""Flags of requests. CREATE_NEW fails where the thing exists."""

_HEADER = struct.Struct("=IHHII")
_ATTRIBUTE = struct.Struct("=HH")
_ERROR = struct.Struct("=i")
_NESTED, _TYPE_MASK = 0x8000, 0x3FFF
_BUFFER = 1 << 20


class Message(NamedTuple):
    """A message; ``number`` is the number of the request that the message answers."""

    kind: int
    number: int
    body: memoryview

    @property
    def error(self) -> int:
        """The error, as in ``errno``; 0 if this is an acknowledgement or no error."""
        if self.kind != ERROR:
            return 0
        return -int(_ERROR.unpack_from(self.body)[0]) if len(self.body) >= 4 else errno.EBADMSG


def pack_request(kind: int, flags: int, body: bytes, number: int = 1) -> bytes:
    """Return a request: ``struct nlmsghdr`` and ``body``."""
    return _HEADER.pack(_HEADER.size + len(body), kind, flags, number, 0) + body


def read_messages(data: bytes) -> Iterator[Message]:
    """Yield the messages of a datagram; ``OSError`` if the datagram is malformed."""
    rest = memoryview(data)
    while len(rest) >= _HEADER.size:
        size, kind, _, number, _ = _HEADER.unpack_from(rest)
        if size < _HEADER.size:
            raise OSError(errno.EBADMSG, os.strerror(errno.EBADMSG))
        yield Message(kind, number, rest[_HEADER.size : size])
        rest = rest[(size + 3) & ~3 :]


def receive(opened: socket.socket) -> Iterator[Message]:
    """Wait for a datagram and yield its messages."""
    return read_messages(opened.recv(_BUFFER))


def dump(
    opened: socket.socket, request: bytes, *, none: Collection[int] = ()
) -> Iterator[memoryview]:
    """Send a request for a list; yield the body of each item.

    Raises ``OSError`` if the kernel refuses; an error in ``none`` means that the list is empty.
    """
    opened.send(request)
    while True:
        for message in receive(opened):
            if message.kind == ERROR and message.error not in none:
                raise OSError(message.error, os.strerror(message.error))
            if message.kind in (DONE, ERROR):
                return
            yield message.body


def attribute(kind: int, data: bytes) -> bytes:
    """Return an attribute, padded."""
    return _ATTRIBUTE.pack(_ATTRIBUTE.size + len(data), kind) + data + bytes(-len(data) % 4)


def nested(kind: int, *attributes: bytes) -> bytes:
    """Return an attribute that consists of others."""
    return attribute(kind | _NESTED, b"".join(attributes))


def attributes(data: memoryview) -> dict[int, memoryview]:
    """Return attributes by type."""
    values, start = {}, 0
    while start + _ATTRIBUTE.size <= len(data):
        size, kind = _ATTRIBUTE.unpack_from(data, start)
        if size < _ATTRIBUTE.size:
            break
        values[kind & _TYPE_MASK] = data[start + _ATTRIBUTE.size : start + size]
        start += (size + 3) & ~3
    return values
