"""Fragments of packets, as tests send them, and what becomes of one that has to wait."""

from __future__ import annotations

from scapy.layers.inet import IP, fragment
from scapy.layers.inet6 import IPv6ExtHdrFragment
from scapy.packet import Packet, Raw

from tests.packets.node import REDIRECT, Node
from tests.packets.packet import ip, same

PAYLOAD = bytes(number * 7 & 0xFF for number in range(3500))

SIZE = 1200
"""Bytes of every fragment but the last, a multiple of 8."""


def cut(packet: Packet, number: int = 77, size: int = SIZE) -> list[Packet]:
    """Cut a packet into fragments that share an identification."""
    if packet.version == 4:
        whole = packet.copy()
        whole.id = number
        return [
            IP(bytes(one))
            for one in fragment(whole, size)  # type: ignore[no-untyped-call]
        ]
    data = bytes(packet.payload)
    return [
        ip(packet.src, packet.dst)
        / IPv6ExtHdrFragment(
            nh=type(packet)(bytes(packet)).nh, offset=at // 8, m=at + size < len(data), id=number
        )
        / Raw(data[at : at + size])
        for at in range(0, len(data), size)
    ]


def waits(node: Node, packet: Packet) -> bool:
    """True if a packet is sent unchanged into the interface that it came from, to wait."""
    verdict, after = node.run("ingress", packet)
    return verdict == REDIRECT and same(after, packet)
