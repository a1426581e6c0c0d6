"""Packets of the tests: made from ``address:port`` texts, and compared to the last byte."""

from __future__ import annotations

from typing import cast

from scapy.layers.inet import IP, TCP, UDP
from scapy.layers.inet6 import IPv6
from scapy.layers.l2 import Ether
from scapy.layers.sctp import SCTP, SCTPChunkData, SCTPChunkInit, SCTPChunkInitAck
from scapy.packet import Packet, Raw

from bpfsvc.base.address import pack

LINK = Ether(src="02:00:00:00:00:01", dst="02:00:00:00:00:02")
_LINK_OF: dict[type[Packet], bytes] = {kind: bytes(LINK / kind())[:14] for kind in (IP, IPv6)}


def address_port(text: str) -> tuple[bytes, int]:
    """Return the packed address and the port of an ``address:port`` text."""
    address, port = _split(text)
    return pack(address), port


def ip(source: str, destination: str) -> Packet:
    """Make the IP layer of either family."""
    layer = IPv6 if ":" in source else IP
    return cast(Packet, layer(src=source, dst=destination))


def frame(packet: Packet) -> bytes:
    """Return the bytes of ``LINK / packet``, without the copy of all layers that ``/`` makes."""
    link = _LINK_OF.get(type(packet))
    return bytes(LINK / packet) if link is None else link + bytes(packet)


def _stacked(lowest: Packet, *layers: Packet) -> Packet:
    """Return the layers as one packet; ``/`` does the same, but copies all layers each time.

    They are marked as explicit (no field is a set of values), or scapy would copy them once more to
    make their bytes.
    """
    below = lowest
    below.explicit = 1
    for layer in layers:
        layer.explicit = 1
        below.add_payload(layer)
        below = layer
    return lowest


def tcp(client: str, server: str, flags: str = "S", payload: bytes = b"") -> Packet:
    """Make a TCP packet from one ``address:port`` to another."""
    (source, sport), (destination, dport) = _split(client), _split(server)
    segment = TCP(sport=sport, dport=dport, flags=flags)
    return _stacked(ip(source, destination), segment, Raw(payload))


def udp(client: str, server: str, payload: bytes = b"x") -> Packet:
    """Make a UDP packet from one ``address:port`` to another."""
    (source, sport), (destination, dport) = _split(client), _split(server)
    return _stacked(ip(source, destination), UDP(sport=sport, dport=dport), Raw(payload))


def sctp(client: str, server: str, chunk: Packet | None = None, payload: bytes = b"x") -> Packet:
    """Make an SCTP packet from one ``address:port`` to another: ``chunk``, or else data."""
    (source, sport), (destination, dport) = _split(client), _split(server)
    chunk = SCTPChunkData(data=payload) if chunk is None else chunk.copy()
    header = SCTP(sport=sport, dport=dport, tag=0x0BADCAFE)
    return _stacked(ip(source, destination), header, chunk)


def sctp_init(client: str, server: str) -> Packet:
    """Make the first packet of an SCTP association."""
    return sctp(client, server, SCTPChunkInit(init_tag=7, a_rwnd=65536))


def sctp_init_ack(server: str, client: str) -> Packet:
    """Make the answer to the first packet of an SCTP association."""
    return sctp(server, client, SCTPChunkInitAck(init_tag=9, a_rwnd=65536))


def _split(text: str) -> tuple[str, int]:
    address, _, port = text.rpartition(":")
    return address.strip("[]"), int(port)


def same(got: Packet, wanted: Packet) -> bool:
    """True if two packets are equal to the last byte, checksums included."""
    return bytes(got) == bytes(wanted)
