"""Whole frames, made from the two ends of a flow; all checksums are right.

Made here and not by a library for packets, which is no part of what is installed.
"""

from __future__ import annotations

import socket
import struct
from typing import NamedTuple

from bpfsvc.base.checksum import checksum

SYN, ACK = 0x02, 0x10

ARP_REQUEST = (
    b"\xff" * 6
    + bytes.fromhex("020000000001 0806 0001 0800 06 04 0001 020000000001")
    + socket.inet_aton("192.0.2.1")
    + bytes(6)
    + socket.inet_aton("192.0.2.2")
).ljust(60, b"\0")
"""A frame without IP in it."""

LINK = bytes.fromhex("000000000000 020000000001")
"""Hardware addresses: destination, then source."""

_ETHERTYPES = {4: 0x0800, 6: 0x86DD}
_DONT_FRAGMENT = 0x4000
TTL = 64
PAYLOAD = bytes(range(18))
"""With it, UDP over IPv4 fills the smallest frame there is."""


class Place(NamedTuple):
    """An address as text, and a port."""

    address: str
    port: int

    @property
    def packed(self) -> bytes:
        """The address as it is in a packet, 4 or 16 bytes."""
        family = socket.AF_INET6 if ":" in self.address else socket.AF_INET
        return socket.inet_pton(family, self.address)


class Flow(NamedTuple):
    """Source and destination, by TCP or UDP (an IPPROTO number)."""

    source: Place
    destination: Place
    protocol: int

    @property
    def family(self) -> int:
        """4 or 6."""
        return 6 if ":" in self.source.address else 4

    @property
    def reply(self) -> Flow:
        """The flow of the replies."""
        return Flow(self.destination, self.source, self.protocol)

    def frame(
        self, flags: int = ACK, link: bytes = LINK, ttl: int = TTL, payload: bytes = PAYLOAD
    ) -> bytes:
        """Return an Ethernet frame with a packet of the flow; ``flags`` are for TCP."""
        addresses = self.source.packed + self.destination.packed
        transport = self._transport(addresses, flags, payload)
        if self.family == 4:
            lengths = (0x45, 0, 20 + len(transport), 0, _DONT_FRAGMENT)
            header = struct.pack("!BBHHHBB", *lengths, ttl, self.protocol)
            header += struct.pack("!H", checksum(header + addresses))
        else:
            header = struct.pack("!IHBB", 6 << 28, len(transport), self.protocol, ttl)
        ethertype = struct.pack("!H", _ETHERTYPES[self.family])
        return link + ethertype + header + addresses + transport

    def _transport(self, addresses: bytes, flags: int, payload: bytes) -> bytes:
        start = struct.pack("!HH", self.source.port, self.destination.port)
        if self.protocol == socket.IPPROTO_TCP:
            start += struct.pack("!IIBBH", 1, 1, 0x50, flags, 64240)
            end = bytes(2) + payload
        else:
            start += struct.pack("!H", 8 + len(payload))
            end = payload
        size = len(start) + 2 + len(end)
        pseudo = addresses + struct.pack("!II", size, self.protocol)
        return start + struct.pack("!H", checksum(pseudo + start + end)) + end
