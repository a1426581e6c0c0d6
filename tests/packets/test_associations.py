"""The end of an SCTP association: who may end it, and how soon its entries go."""

from __future__ import annotations

import time

import pytest
from scapy.layers.sctp import (
    SCTPChunkAbort,
    SCTPChunkCookieAck,
    SCTPChunkCookieEcho,
    SCTPChunkShutdownComplete,
)
from scapy.packet import Packet

from tests.packets.node import Node
from tests.packets.packet import same, sctp, sctp_init, sctp_init_ack
from tests.packets.peers import Peers, address_of

CLOSED, LASTING = 2, 6
CLOCK_MONOTONIC_COARSE = 6
"""The programs' clock."""
LIFETIMES = {"tcp_closed_seconds": CLOSED, "sctp_seconds": LASTING, "half_open_seconds": LASTING}
TO_BACKEND, TO_CLIENT = 0x11111111, 0x22222222
"""The verification tags of the two directions."""

KINDS = pytest.mark.parametrize("masquerade", [False, True], ids=["plain", "masqueraded"])


class Association:
    """An association through a frontend. Each chunk must arrive, translated."""

    def __init__(self, node: Node, peers: Peers, masquerade: bool) -> None:
        self.node, self.peers, self.masquerade = node, peers, masquerade
        self.client, self.vip, self.backend = peers.served(
            node, outside=True, masquerade=masquerade
        )
        node.settings(**LIFETIMES)
        self.seen = ""

    def init(self) -> Packet:
        out = self.node.forward(sctp_init(self.client, self.vip))
        self.seen = self.peers.with_port(out.src, out.payload.sport)
        return out

    def answered(self) -> None:
        self.init()
        self.from_backend(sctp_init_ack(self.backend, self.seen).payload.payload, TO_CLIENT)

    def established(self) -> None:
        self.answered()
        self.from_client(SCTPChunkCookieEcho(cookie=b"1234"), TO_BACKEND)
        self.from_backend(SCTPChunkCookieAck(), TO_CLIENT)

    def from_client(self, chunk: Packet, tag: int) -> None:
        comes, goes = (
            tagged(sctp(*ends, chunk.copy()), tag)
            for ends in ((self.client, self.vip), (self.seen, self.backend))
        )
        assert same(self.node.forward(comes), goes)

    def from_backend(self, chunk: Packet, tag: int) -> None:
        comes, goes = (
            tagged(sctp(*ends, chunk.copy()), tag)
            for ends in ((self.backend, self.seen), (self.vip, self.client))
        )
        assert same(self.node.forward(comes), goes)

    def collected(self, *, early_ports: bool = True) -> int:
        """Return how many pairs are over when it was silent for longer than closed ones are kept.

        (The port of the node may be kept longer: tests of TCP have that.)
        """
        self.node.age(CLOSED + 1)
        keys = [key for key, _ in self.node.pinned.map("connections").items()]
        return self.node.collect(*keys, early_ports=early_ports)

    @property
    def pairs(self) -> int:
        return 2 if self.masquerade else 1


def tagged(packet: Packet, tag: int) -> Packet:
    packet.payload.tag = tag
    return packet


@pytest.fixture
def association(node: Node, sctp_peers: Peers, masquerade: bool) -> Association:
    return Association(node, sctp_peers, masquerade)


ENDS = {
    "ABORT of the client": ("client", SCTPChunkAbort(), TO_BACKEND),
    "ABORT of the backend": ("backend", SCTPChunkAbort(), TO_CLIENT),
    "ABORT of a backend that has forgotten it": ("backend", SCTPChunkAbort(TCB=1), TO_BACKEND),
    "SHUTDOWN COMPLETE of the client": ("client", SCTPChunkShutdownComplete(), TO_BACKEND),
    "SHUTDOWN COMPLETE of the backend": ("backend", SCTPChunkShutdownComplete(), TO_CLIENT),
    "SHUTDOWN COMPLETE of a client that has forgotten it": (
        *("client", SCTPChunkShutdownComplete(TCB=1)),
        TO_CLIENT,
    ),
}


def send(association: Association, side: str, chunk: Packet, tag: int) -> None:
    (association.from_client if side == "client" else association.from_backend)(chunk, tag)


@KINDS
@pytest.mark.parametrize("end", ENDS)
def test_an_association_that_has_ended_is_soon_over(association: Association, end: str) -> None:
    association.established()
    assert association.collected() == 0
    send(association, *ENDS[end])
    assert association.collected() == association.pairs


@pytest.mark.parametrize("masquerade", [False], ids=["plain"])
def test_the_time_of_an_association_that_has_ended_begins_with_its_end(
    association: Association,
) -> None:
    association.established()
    association.node.age(0.5)  # within a second no other packet is noted
    before = time.clock_gettime_ns(CLOCK_MONOTONIC_COARSE)
    association.from_client(SCTPChunkAbort(), TO_BACKEND)
    record = association.node.pinned.layout.maps["connections"].value
    entries = [record.unpack(raw) for _, raw in association.node.pinned.map("connections").items()]
    assert max(int(entry["seen"]) for entry in entries) >= before


@KINDS
def test_after_the_end_the_next_association_from_the_same_port_gets_a_backend_that_is_there(
    association: Association,
) -> None:
    association.established()
    association.from_backend(SCTPChunkAbort(), TO_CLIENT)
    peers = association.peers
    peers.service(association.node, [peers.other_backend], masquerade=association.masquerade)
    assert association.init().dst == address_of(peers.backend)
    assert association.collected() == association.pairs
    assert association.init().dst == address_of(peers.other_backend)


FORGED = {
    "another tag": ("client", SCTPChunkAbort(), 0x33333333),
    "no tag": ("client", SCTPChunkAbort(), 0),
    "the tag of the other direction, and no T bit": ("client", SCTPChunkAbort(), TO_CLIENT),
    "the tag of its own direction, another T bit": ("backend", SCTPChunkAbort(TCB=1), 0x33333333),
    "SHUTDOWN COMPLETE with another tag": ("backend", SCTPChunkShutdownComplete(), 0x33333333),
}


@KINDS
@pytest.mark.parametrize("forged", FORGED)
def test_a_chunk_with_a_wrong_tag_arrives_and_ends_nothing(
    association: Association, forged: str
) -> None:
    association.established()
    send(association, *FORGED[forged])
    assert association.collected() == 0


@KINDS
def test_a_forged_cookie_does_not_make_a_forged_abort_genuine(association: Association) -> None:
    association.established()
    association.from_client(SCTPChunkCookieEcho(cookie=b"forged"), 0x33333333)
    association.from_client(SCTPChunkAbort(), 0x33333333)
    assert association.collected() == 0


@KINDS
def test_an_association_that_begins_again_is_kept(association: Association) -> None:
    """With other tags, while the entries of the one before are still there."""
    association.established()
    association.from_backend(SCTPChunkAbort(), TO_CLIENT)
    association.answered()
    association.from_client(SCTPChunkCookieEcho(cookie=b"5678"), 0x44444444)
    association.from_backend(SCTPChunkCookieAck(), 0x55555555)
    assert association.collected() == 0
    association.from_client(SCTPChunkAbort(), TO_BACKEND)
    assert association.collected() == 0
    association.from_client(SCTPChunkAbort(), 0x44444444)
    assert association.collected() == association.pairs


@KINDS
def test_an_association_that_is_refused_is_soon_over(association: Association) -> None:
    association.init()
    assert association.collected() == 0
    association.from_backend(SCTPChunkAbort(), 7)
    assert association.collected() == association.pairs
