"""ICMP errors as routers and hosts send them."""

from __future__ import annotations

from scapy.layers.inet import ICMP
from scapy.layers.inet6 import (
    ICMPv6DestUnreach,
    ICMPv6PacketTooBig,
    ICMPv6ParamProblem,
    ICMPv6TimeExceeded,
)
from scapy.packet import Packet, Raw

from tests.packets.packet import ip

QUOTED_CHECKSUM = 0x1234
"""The transport checksum of every quoted packet: translation does not change it."""

KINDS = {
    "too big": (ICMP(type=3, code=4, nexthopmtu=1400), ICMPv6PacketTooBig(mtu=1400)),
    "time exceeded": (ICMP(type=11, code=0), ICMPv6TimeExceeded()),
    "port unreachable": (ICMP(type=3, code=3), ICMPv6DestUnreach(code=4)),
    "host unreachable": (ICMP(type=3, code=1), ICMPv6DestUnreach(code=3)),
    "parameter problem": (ICMP(type=12, code=0), ICMPv6ParamProblem(code=0)),
    "source quench, unknown header": (ICMP(type=4, code=0), ICMPv6ParamProblem(code=1)),
}
"""Kind of error -> the ICMP header of IPv4 and of IPv6."""


def error(
    source: str, destination: str, about: Packet, kind: str = "too big", transport: int = 0
) -> Packet:
    """Make an error from one address to another that quotes the packet ``about``.

    ``transport`` is how many bytes behind the IP header are quoted; 0: all.
    """
    about = about.copy()
    about.payload.chksum = QUOTED_CHECKSUM
    quote = bytes(about)
    if transport:
        quote = quote[: len(quote) - len(bytes(about.payload)) + transport]
    header = KINDS[kind][":" in source]
    return ip(source, destination) / header.copy() / Raw(quote)
