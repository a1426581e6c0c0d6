"""The answers to a client of a Service without endpoints."""

from __future__ import annotations

from scapy.layers.inet import ICMP, IP, TCP
from scapy.layers.inet6 import ICMPv6DestUnreach, IPv6
from scapy.layers.l2 import Ether
from scapy.packet import Packet, Raw

from tests.packets.extension_headers import with_headers
from tests.packets.node import REDIRECT, Node
from tests.packets.packet import LINK, ip

QUOTED = 128
"""Bytes of a refused packet that are quoted at most; of a shorter one all whole words of 4."""


def unreachable(about: Packet) -> Packet:
    """Make the error that goes back: port unreachable, from the packet's destination address."""
    whole = bytes(about)
    quote = Raw(whole[: min(QUOTED, len(whole) // 4 * 4)])
    if about.version == 4:
        error: Packet = IP(src=about.dst, dst=about.src, id=0) / ICMP(type=3, code=3)
    else:
        error = IPv6(src=about.dst, dst=about.src) / ICMPv6DestUnreach(code=4)
    return error / quote


def reset(about: Packet) -> Packet:
    """Make the reset that answers a SYN (RFC 9293, 3.10.7.1)."""
    (sport, dport), data = (about.payload.sport, about.payload.dport), about.payload.payload
    acknowledged = about.payload.seq + 1 + len(bytes(data)) & 0xFFFFFFFF
    answer = TCP(sport=dport, dport=sport, seq=0, ack=acknowledged, flags="RA", window=0)
    return ip(about.dst, about.src) / answer


def is_reset(about: Packet) -> bool:
    """True if a packet is refused by a reset: a SYN over IPv6."""
    return about.version == 6 and isinstance(about.payload, TCP)


def refused(node: Node, packet: Packet, *headers: Packet, trailer: bytes = b"") -> bool:
    """True if an incoming packet is refused; it may have extension headers and a padded frame.

    Every address and checksum of the frame that goes back is compared, and the link's addresses.
    """
    about = with_headers(packet, *headers) if headers else packet
    if is_reset(packet):
        answer = reset(packet)
        answer = with_headers(answer, *headers) if headers else answer
    else:
        answer = unreachable(about)
    wanted = bytes(Ether(src=LINK.dst, dst=LINK.src) / answer)
    return node.run_frame("ingress", bytes(LINK / about) + trailer) == (REDIRECT, wanted)
