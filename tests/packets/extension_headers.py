"""IPv6 packets with extension headers."""

from __future__ import annotations

from scapy.layers.inet6 import (
    IPv6,
    IPv6ExtHdrDestOpt,
    IPv6ExtHdrFragment,
    IPv6ExtHdrHopByHop,
    IPv6ExtHdrRouting,
)
from scapy.layers.ipsec import AH
from scapy.packet import Packet, Raw

NUMBERS = {
    IPv6ExtHdrHopByHop: 0,
    IPv6ExtHdrRouting: 43,
    IPv6ExtHdrFragment: 44,
    AH: 51,
    IPv6ExtHdrDestOpt: 60,
}


def with_headers(packet: Packet, *headers: Packet) -> Packet:
    """Put extension headers into an IPv6 packet, in this order, before what it has already.

    The bytes are chained here: scapy computes no transport checksum behind some headers.
    """
    number, data = type(packet)(bytes(packet)).nh, bytes(packet.payload)
    for header in reversed(headers):
        number, data = NUMBERS[type(header)], bytes([number]) + bytes(header)[1:] + data
    return IPv6(src=packet.src, dst=packet.dst, nh=number) / Raw(data)


def authentication(size: int, units: int = 0) -> Packet:
    """Make the header of RFC 4302 with a value of ``size`` bytes; ``units``: a wrong length."""
    return AH(spi=1, seq=1, payloadlen=units or (12 + size) // 4 - 2, icv=b"v" * size)
