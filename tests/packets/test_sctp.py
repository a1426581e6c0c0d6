"""SCTP: what differs from other protocols, above all its CRC checksum.

Ordinary connections are tested in the other files: each test runs over SCTP too. Scapy computes the
wanted checksums over whole packets.
"""

from __future__ import annotations

import random
import struct

import pytest
from scapy.layers.inet import IPOption_NOP
from scapy.layers.inet6 import IPv6ExtHdrDestOpt, IPv6ExtHdrHopByHop
from scapy.layers.sctp import (
    SCTPChunkCookieEcho,
    SCTPChunkData,
    SCTPChunkHeartbeatReq,
    SCTPChunkSACK,
    crc32c,
)
from scapy.packet import Packet, Raw

from bpfsvc.datapath.loader import crc32c as tables
from tests.packets.extension_headers import with_headers
from tests.packets.node import UNSPEC, Node
from tests.packets.packet import LINK, same, sctp, sctp_init
from tests.packets.peers import Peers

CASES = 60


@pytest.mark.parametrize("masquerade", [False, True], ids=["plain", "masqueraded"])
def test_payloads_of_any_size_keep_a_correct_checksum(
    node: Node, sctp_peers: Peers, masquerade: bool
) -> None:
    dice = random.Random(132)
    client, vip, backend, seen = sctp_peers.connected(node, outside=True, masquerade=masquerade)
    for _ in range(CASES):
        payload = dice.randbytes(dice.randrange(1401))
        out = node.forward(sctp(client, vip, payload=payload))
        assert same(out, sctp(seen, backend, payload=payload))
        back = node.forward(sctp(backend, seen, payload=payload))
        assert same(back, sctp(vip, client, payload=payload))


def test_any_ports_keep_a_correct_checksum(node: Node, sctp_peers: Peers) -> None:
    dice = random.Random(9260)
    for _ in range(CASES):
        client = sctp_peers.with_port(sctp_peers.client, dice.randrange(1, 65536))
        vip = sctp_peers.with_port(sctp_peers.vip, dice.randrange(1, 65536))
        backend = sctp_peers.with_port(sctp_peers.backend, dice.randrange(1, 65536))
        sctp_peers.service(node, [backend], frontends=[vip])
        out = node.forward(sctp_peers.opening(client, vip))
        assert same(out, sctp_peers.opening(client, backend))


CHUNKS = {
    "a heartbeat": SCTPChunkHeartbeatReq(),
    "a cookie": SCTPChunkCookieEcho(cookie=b"c" * 99),
    "an acknowledgement and data": SCTPChunkSACK(cumul_tsn_ack=5) / SCTPChunkData(data=b"d" * 7),
    "data several times": SCTPChunkData(data=b"d") / SCTPChunkData(data=b"ata") / SCTPChunkData(),
    "a length that is no multiple of 4": Raw(b"\0\3\0\7abc"),
    "no chunk at all": Raw(b""),
}


@pytest.mark.parametrize("name", CHUNKS)
def test_packets_with_any_chunks_pass_both_ways(node: Node, sctp_peers: Peers, name: str) -> None:
    client, vip, backend, seen = sctp_peers.connected(node, outside=True, masquerade=True)
    chunk = CHUNKS[name]
    assert same(node.forward(sctp(client, vip, chunk)), sctp(seen, backend, chunk))
    assert same(node.forward(sctp(backend, seen, chunk)), sctp(vip, client, chunk))


def with_checksum(packet: Packet, checksum: int) -> Packet:
    packet.payload.chksum = checksum
    return packet


def test_a_checksum_that_is_not_computed_yet_stays_zero(node: Node, sctp_peers: Peers) -> None:
    """A sender leaves zero there if its interface computes the checksum."""
    client, vip, backend, seen = sctp_peers.connected(node, outside=True, masquerade=True)
    out = node.forward(with_checksum(sctp(client, vip), 0))
    assert same(out, with_checksum(sctp(seen, backend), 0))
    back = node.forward(with_checksum(sctp(backend, seen), 0))
    assert same(back, with_checksum(sctp(vip, client), 0))


def checksum(packet: Packet) -> int:
    return int(type(packet)(bytes(packet)).payload.chksum)


def test_a_wrong_checksum_stays_wrong(node: Node, sctp_peers: Peers) -> None:
    """The receiver must notice; a newly computed checksum would hide the damage."""
    client, vip, backend = sctp_peers.served(node)
    arrived = sctp_peers.opening(client, vip)
    out = node.forward(with_checksum(arrived, checksum(arrived) ^ 0x00100401))
    assert checksum(out) ^ 0x00100401 == checksum(sctp_peers.opening(client, backend))


def test_without_a_change_of_ports_the_checksum_stays(node: Node, sctp_peers: Peers) -> None:
    """The checksum does not cover addresses."""
    client, backend = sctp_peers.client, sctp_peers.with_port(sctp_peers.backend, 80)
    sctp_peers.service(node, [backend])
    for wrong in (0, 0x12345678):
        out = node.forward(with_checksum(sctp_init(client, sctp_peers.vip), wrong))
        assert same(out, with_checksum(sctp_init(client, backend), wrong))


@pytest.mark.parametrize("padding", [1, 2, 3, 10, 100])
def test_padding_of_the_frame_is_no_part_of_the_packet(
    node: Node, sctp_peers: Peers, padding: int
) -> None:
    client, vip, backend = sctp_peers.served(node)
    trailer = b"\xa5" * padding
    verdict, frame = node.run_frame("ingress", bytes(LINK / sctp_init(client, vip)) + trailer)
    assert (verdict, frame) == (UNSPEC, bytes(LINK / sctp_init(client, backend)) + trailer)


def test_data_of_an_unknown_association_passes_unchanged(node: Node, sctp_peers: Peers) -> None:
    """As for TCP: kube-proxy's associations continue unchanged when bpfsvc takes over."""
    sctp_peers.service(node, [sctp_peers.backend])
    packet = sctp(sctp_peers.client, sctp_peers.vip)
    assert same(node.forward(packet), packet)
    assert node.states() == (0, 0)


def test_headers_before_sctp_are_not_covered_by_its_checksum(node: Node, sctp_peers: Peers) -> None:
    client, vip, backend = sctp_peers.client, sctp_peers.vip, sctp_peers.backend

    def longer(packet: Packet) -> Packet:
        if sctp_peers.family == 6:
            return with_headers(packet, IPv6ExtHdrHopByHop(), IPv6ExtHdrDestOpt())
        packet.options = [IPOption_NOP()] * 20
        return packet

    sctp_peers.service(node, [backend])
    out = node.forward(longer(sctp_peers.opening(client, vip)))
    assert same(out, longer(sctp_peers.opening(client, backend)))


def test_a_packet_with_less_than_a_header_is_dropped_and_not_half_changed(
    node: Node, sctp_peers: Peers
) -> None:
    sctp_peers.service(node, [sctp_peers.backend])
    sctp_peers.connect(node, sctp_peers.client, sctp_peers.vip, sctp_peers.backend)
    frame = bytes(LINK / sctp(sctp_peers.client, sctp_peers.vip))
    header = 14 + (40 if sctp_peers.family == 6 else 20)
    verdict, _ = node.run_frame("ingress", frame[: header + 8])
    assert verdict == 2
    assert node.counter("dropped__rewrite_failed") == 1


def advanced(crc: int, size: int) -> int:
    """Advance a CRC over zero bytes by the agent's tables, as the programs do."""
    rows = tables.steps(16)
    for n in (n for n in range(len(rows)) if size >> n & 1):
        columns = struct.unpack("=32I", rows[n])
        product = 0
        for bit in range(32):
            product ^= columns[bit] * (crc >> bit & 1)
        crc = product
    return crc


@pytest.mark.parametrize("size", [4, 5, 12, 1500, 9000, 65535])
def test_the_tables_reach_as_far_as_the_longest_packet(size: int) -> None:
    """The CRC difference of two packets is the CRC of changed bytes and the zeros after them."""
    difference = bytes.fromhex("8badf00d")
    zeros = bytes(size)
    there: int = crc32c(zeros) ^ crc32c(difference + zeros[4:])  # type: ignore[no-untyped-call]
    found = advanced(int.from_bytes(difference, "little"), size)
    assert found.to_bytes(4, "little") == there.to_bytes(4, "big")
