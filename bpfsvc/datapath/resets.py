"""TCP resets in the name of others, to end connections that pass through this node.

They are sent as raw packets, so they are routed and pass the programs as any other packet of the
connection. That needs CAP_NET_RAW.
"""

from __future__ import annotations

import socket
import struct
from collections.abc import Iterable
from contextlib import ExitStack, suppress
from typing import NamedTuple

from bpfsvc.base.address import family, unpack
from bpfsvc.services.entries import Place

_TTL = 64
_RST = 4
_IPV4 = struct.Struct("!BBHHHBBH4s4s")
_IPV6 = struct.Struct("!IHBB16s16s")
_TCP = struct.Struct("!HHIIBBHHH")
_DO_NOT_FRAGMENT = 0x4000


class Reset(NamedTuple):
    """A reset. ``sequence`` is the number that its receiver expects next; any other is ignored."""

    source: Place
    destination: Place
    sequence: int


def packet_of(reset: Reset) -> bytes:
    """Return the packet, with its IP header."""
    (source, port), (destination, to), sequence = reset
    if family(destination) == 4:
        source, destination = source[12:], destination[12:]
    head = _TCP.pack(port, to, sequence, 0, _TCP.size // 4 << 4, _RST, 0, 0, 0)
    pseudo = source + destination + struct.pack("!II", _TCP.size, socket.IPPROTO_TCP)
    head = _TCP.pack(
        port, to, sequence, 0, _TCP.size // 4 << 4, _RST, 0, _checksum(pseudo + head), 0
    )
    if len(destination) == 16:
        start = _IPV6.pack(6 << 28, len(head), socket.IPPROTO_TCP, _TTL, source, destination)
        return start + head
    size = _IPV4.size + len(head)
    fields = (0x45, 0, size, 0, _DO_NOT_FRAGMENT, _TTL, socket.IPPROTO_TCP)
    start = _IPV4.pack(*fields, 0, source, destination)
    return _IPV4.pack(*fields, _checksum(start), source, destination) + head


def send(resets: Iterable[Reset]) -> int:
    """Send resets; return how many. One that cannot be sent, for want of a route, is left out.

    Raises ``PermissionError`` without CAP_NET_RAW.
    """
    sent = 0
    with ExitStack() as opened:
        senders = {
            each: opened.enter_context(socket.socket(each, socket.SOCK_RAW, socket.IPPROTO_RAW))
            for each in (socket.AF_INET, socket.AF_INET6)
        }
        for one in resets:
            address = one.destination[0]
            sender = senders[socket.AF_INET if family(address) == 4 else socket.AF_INET6]
            with suppress(OSError):
                sender.sendto(packet_of(one), (unpack(address), 0))
                sent += 1
    return sent


def _checksum(data: bytes) -> int:
    """Return the checksum of RFC 1071, of an even number of bytes."""
    total: int = sum(struct.unpack(f"!{len(data) // 2}H", data))
    while total >> 16:
        total = (total & 0xFFFF) + (total >> 16)
    return total ^ 0xFFFF
