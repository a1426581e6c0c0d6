"""TCP resets in the name of others, to end connections that pass through this node.

Resets are sent as raw packets, so the kernel routes them and they pass the programs as any other
packet of the connection. Raw packets need CAP_NET_RAW.
"""

from __future__ import annotations

import socket
import struct
from collections.abc import Iterable
from contextlib import ExitStack, suppress
from typing import NamedTuple

from bpfsvc.base.address import family, unpack
from bpfsvc.base.checksum import checksum
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
    fields = (port, to, sequence, 0, _TCP.size // 4 << 4, _RST, 0)
    pseudo = source + destination + struct.pack("!II", _TCP.size, socket.IPPROTO_TCP)
    head = _TCP.pack(*fields, checksum(pseudo + _TCP.pack(*fields, 0, 0)), 0)
    if len(destination) == 16:
        start = _IPV6.pack(6 << 28, len(head), socket.IPPROTO_TCP, _TTL, source, destination)
        return start + head
    size = _IPV4.size + len(head)
    before = (0x45, 0, size, 0, _DO_NOT_FRAGMENT, _TTL, socket.IPPROTO_TCP)
    start = _IPV4.pack(*before, 0, source, destination)
    return _IPV4.pack(*before, checksum(start), source, destination) + head


def send(resets: Iterable[Reset]) -> int:
    """Send resets; return how many. A reset that cannot be sent, without a route, is left out.

    Raises ``PermissionError`` without CAP_NET_RAW.
    """
    sent = 0
    with ExitStack() as opened:
        senders = {
            kind: opened.enter_context(socket.socket(kind, socket.SOCK_RAW, socket.IPPROTO_RAW))
            for kind in (socket.AF_INET, socket.AF_INET6)
        }
        for reset in resets:
            address = reset.destination[0]
            sender = senders[socket.AF_INET if family(address) == 4 else socket.AF_INET6]
            with suppress(OSError):
                sender.sendto(packet_of(reset), (unpack(address), 0))
                sent += 1
    return sent
