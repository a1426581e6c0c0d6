"""The floods: their frames, and what of a frame is another in each."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

from scapy.layers.inet import ICMP, TCP
from scapy.layers.inet6 import ICMPv6EchoRequest, IPv6ExtHdrFragment
from scapy.packet import Packet

from tests.floods.sender import Varied
from tests.lab.testbed import at, host
from tests.packets.icmp_errors import error
from tests.packets.packet import ip, tcp, udp

_LINK = 14
_HEADER = {4: 20, 6: 40}
_NETWORKS = 16
"""A frame for each; within each the lowest 16 bits of the client's address count up."""


class Target(NamedTuple):
    """Where a flood goes: a node's address, a port there, and clients with open connections."""

    family: int
    address: str
    port: int
    open: Sequence[str]
    """``address:port`` of clients that have connections to it."""

    @property
    def text(self) -> str:
        """Its ``address:port``."""
        return at(self.address, self.port)


class Flood(NamedTuple):
    """Packets without their link layer, and the words of the frame that differ."""

    packets: Sequence[Packet]
    varied: Sequence[Varied]


def _clients(family: int, port: int = 4000) -> list[str]:
    if family == 4:
        return [f"10.7.{network}.1:{port}" for network in range(_NETWORKS)]
    return [f"[fd77::{network:x}:0:1]:{port}" for network in range(_NETWORKS)]


def _source(family: int, *covering: int) -> Varied:
    """Vary the client's address; ``covering``: words behind the IP header that make up for it."""
    behind = [_LINK + _HEADER[family] + word for word in covering]
    if family == 4:
        # The identification makes up for it in the checksum of the IP header.
        return Varied(_LINK + 14, [_LINK + 4, *behind])
    return Varied(_LINK + 22, behind)


def syn(target: Target) -> Flood:
    """First packets of connections that nobody goes on with."""
    packets = [tcp(client, target.text) for client in _clients(target.family)]
    return Flood(packets, [_source(target.family, 0)])


def datagrams(target: Target) -> Flood:
    """Datagrams, a flow each."""
    packets = [udp(client, target.text) for client in _clients(target.family)]
    return Flood(packets, [_source(target.family, 0)])


def echo(target: Target) -> Flood:
    """Echo requests to the address of the frontend."""
    header = ICMP(id=1) if target.family == 4 else ICMPv6EchoRequest(id=1)
    # The checksum of ICMP does not cover the addresses, that of ICMPv6 does.
    covering = () if target.family == 4 else (4,)
    return Flood(
        [ip(host(client), target.address) / header.copy() for client in _clients(target.family)],
        [_source(target.family, *covering)],
    )


def icmp_errors(target: Target) -> Flood:
    """Errors about connections that do not exist."""
    packets = [
        error(host(client), target.address, udp(target.text, client), "port unreachable")
        for client in _clients(target.family)
    ]
    quoted = _LINK + 2 * _HEADER[target.family] + 8
    return Flood(packets, [Varied(quoted + 2, [quoted + 4])])


def first_fragments(target: Target) -> Flood:
    """First fragments of datagrams whose rest never comes."""
    return Flood(
        [_fragment(packet, 0) for packet in datagrams(target).packets],
        [_source(target.family, 0 if target.family == 4 else 8)],
    )


def later_fragments(target: Target) -> Flood:
    """Fragments whose first one never came."""
    return Flood(
        [_fragment(packet, 185) for packet in datagrams(target).packets], [_source(target.family)]
    )


def _fragment(packet: Packet, offset: int) -> Packet:
    packet = packet.copy()
    more = int(offset == 0)
    if packet.version == 4:
        packet.flags, packet.frag = ("MF" if more else 0), offset
        return packet if more else packet.__class__(bytes(packet))
    header = IPv6ExtHdrFragment(nh=17, offset=offset, m=more, id=7)
    packet = packet.__class__(bytes(packet))
    inner = packet.payload
    packet.remove_payload()
    packet.plen = None
    packet.nh = 44
    return packet / header / inner


def resets(target: Target) -> Flood:
    """Resets to open connections from their clients' addresses, with guessed sequence numbers."""
    packets = []
    for client in target.open:
        packet = tcp(client, target.text, "R")
        packet[TCP].seq, packet[TCP].ack = 0x40000000, 0x9000
        packets.append(packet)
    high = _LINK + _HEADER[target.family] + 4
    # The high half moves with each, and with it where in the space of 2^32 the guess is.
    return Flood(packets, [Varied(high, [high + 10]), Varied(high + 2, [high + 6])])


KINDS: dict[str, Callable[[Target], Flood]] = {
    "SYN": syn,
    "UDP": datagrams,
    "ICMP echo": echo,
    "ICMP errors": icmp_errors,
    "first fragments": first_fragments,
    "later fragments": later_fragments,
    "RST": resets,
}
