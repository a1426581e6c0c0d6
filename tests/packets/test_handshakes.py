"""Openings that cross, are repeated, or meet a side that remembers an earlier connection.

The situations are those of netfilter's own tests (docs/netfilter-cases.md).
"""

from __future__ import annotations

import pytest
from scapy.layers.sctp import (
    SCTPChunkCookieAck,
    SCTPChunkCookieEcho,
    SCTPChunkData,
    SCTPChunkInit,
    SCTPChunkInitAck,
)
from scapy.packet import Packet

from tests.packets.conversation import Conversation
from tests.packets.node import Node
from tests.packets.packet import same, sctp, tcp
from tests.packets.peers import Peers, address_of

KINDS = pytest.mark.parametrize("masquerade", [False, True], ids=["plain", "masqueraded"])
ENDS = pytest.mark.parametrize("end", ["FIN both ways", "reset"])


@pytest.fixture
def conversation(node: Node, tcp_peers: Peers, masquerade: bool) -> Conversation:
    return Conversation(node, tcp_peers, masquerade)


def arrives_from_frontend(conversation: Conversation, packet: Packet) -> bool:
    """Forward a packet of the backend; true if the client gets it, with its numbers."""
    out = conversation.node.forward(packet)
    wanted = packet.copy()
    vip, client = conversation.peers.vip, conversation.client
    wanted.src, wanted.dst = address_of(vip), address_of(client)
    wanted.payload.sport = tcp(vip, client).payload.sport
    wanted.payload.dport = tcp(vip, client).payload.dport
    return all(
        getattr(out.payload, name) == getattr(wanted.payload, name)
        for name in ("sport", "dport", "seq", "ack", "flags")
    ) and (out.src, out.dst) == (wanted.src, wanted.dst)


def ends(conversation: Conversation, end: str) -> bool:
    """End the connection by its own numbers; true if the next SYN chooses a backend again."""
    node = conversation.node
    if end == "reset":
        node.forward(conversation.reset("backend", 0))
    else:
        node.forward(conversation.from_backend("FA"))
        node.forward(conversation.from_client("FA"))
    return not conversation.is_kept()


@KINDS
@ENDS
def test_a_client_that_forgot_its_connection_connects_after_a_challenge(
    conversation: Conversation, end: str
) -> None:
    """Its SYN is answered for the old connection; it resets that, and sends the SYN again."""
    conversation.open()
    old, node = conversation.sent, conversation.node
    conversation.sent = 0x1001
    assert node.forward(conversation.syn()).dst == address_of(conversation.peers.backend)
    challenge = conversation.from_backend("A")
    challenge.payload.ack = old
    assert arrives_from_frontend(conversation, challenge)
    assert node.forward(conversation.from_client("R", seq=old)).payload.seq == old
    conversation.received = 0x90000001
    conversation.open()
    assert conversation.removed() == 0
    assert ends(conversation, end)


@KINDS
@ENDS
def test_an_answer_for_an_earlier_connection_does_not_spoil_the_next(
    conversation: Conversation, end: str
) -> None:
    """The client's reset of it is lost. It repeats its SYN, and gets the right answer."""
    conversation.start()
    right = conversation.received, conversation.sent
    conversation.received, conversation.sent = 0x08B12345, 0x2655EB8B
    assert arrives_from_frontend(conversation, conversation.from_backend("SA"))
    conversation.received, conversation.sent = right
    conversation.open()
    assert conversation.removed() == 0
    assert ends(conversation, end)


@KINDS
def test_the_reset_of_an_answer_for_an_earlier_connection_ends_nothing(
    conversation: Conversation,
) -> None:
    conversation.start()
    right = conversation.received, conversation.sent
    conversation.received, conversation.sent = 0x08B12345, 0x2655EB8B
    conversation.node.forward(conversation.from_backend("SA"))
    conversation.node.forward(conversation.from_client("R"))
    conversation.received, conversation.sent = right
    conversation.open()
    assert conversation.removed() == 0
    assert conversation.is_kept()


@KINDS
def test_a_late_reset_with_another_number_reaches_a_client_that_has_closed(
    conversation: Conversation,
) -> None:
    """The client closed with unread data. Nobody may take its reset for an attack."""
    node = conversation.open().node
    node.forward(conversation.from_backend("FA"))
    conversation.received += 1
    node.forward(conversation.from_client("A"))
    node.forward(conversation.from_client("RA"))
    late = conversation.reset("backend", -1000)
    assert arrives_from_frontend(conversation, late)
    assert not conversation.is_kept()


@KINDS
def test_data_that_were_acknowledged_long_ago_are_delivered_again(
    conversation: Conversation,
) -> None:
    """Their acknowledgement was lost: without them the sender would never learn it."""
    node = conversation.open().node
    first = conversation.from_client("PA", 1460), conversation.from_backend("PA", 1460)
    for _ in range(50):
        conversation.talk(1460, 1460)
    out = node.forward(first[0])
    assert (out.dst, out.payload.seq) == (
        address_of(conversation.peers.backend),
        first[0].payload.seq,
    )
    assert arrives_from_frontend(conversation, first[1])


@KINDS
@pytest.mark.parametrize("first", ["client", "backend"])
def test_both_sides_may_open_a_tcp_connection_at_once(
    conversation: Conversation, first: str
) -> None:
    """The backend opens from the port that it serves, to the port that it is asked from."""
    conversation.start()
    node = conversation.node
    assert arrives_from_frontend(
        conversation, conversation.from_backend("S", seq=conversation.received - 1)
    )
    answers = {
        "client": conversation.from_client("SA", seq=conversation.sent - 1),
        "backend": conversation.from_backend("SA", seq=conversation.received - 1),
    }
    for side in (first, *(set(answers) - {first})):
        if side == "backend":
            assert arrives_from_frontend(conversation, answers[side])
        else:
            assert node.forward(answers[side]).dst == address_of(conversation.peers.backend)
    conversation.talk(100, 1000)
    assert node.states()[0] == 0
    assert conversation.is_kept()


@pytest.mark.parametrize("flags", ["SEC", "SP", "SU"])
def test_an_opening_may_have_other_flags_and_data(node: Node, tcp_peers: Peers, flags: str) -> None:
    """Of congestion notification (RFC 3168), and of TCP Fast Open (RFC 7413)."""
    client, vip, backend = tcp_peers.served(node)
    opening = tcp(client, vip, flags, b"early data" if "P" in flags else b"")
    wanted = tcp(client, backend, flags, b"early data" if "P" in flags else b"")
    assert same(node.forward(opening), wanted)
    answer = tcp(backend, client, "SAE")
    assert same(node.forward(answer), tcp(vip, client, "SAE"))
    node.forward(tcp(client, vip, "A"))
    assert node.states() == (0, 2)


def chunks() -> dict[str, Packet]:
    return {
        "init": SCTPChunkInit(init_tag=7, a_rwnd=65536),
        "init ack": SCTPChunkInitAck(init_tag=9, a_rwnd=65536),
        "cookie": SCTPChunkCookieEcho(cookie=b"1234"),
        "cookie ack": SCTPChunkCookieAck(),
        "data": SCTPChunkData(data=b"hello"),
    }


COLLISION = (
    *("client init", "backend init", "client init ack", "backend init ack"),
    *("client cookie", "backend cookie", "client cookie ack", "backend cookie ack"),
    *("client data", "backend data", "client data"),
)


@KINDS
@pytest.mark.parametrize("delayed", [0, 3, 5], ids=["in order", "late answer", "late cookie"])
def test_both_sides_may_begin_an_sctp_association_at_once(
    node: Node, sctp_peers: Peers, masquerade: bool, delayed: int
) -> None:
    """RFC 9260, 5.2.1: one association comes of it, and each chunk must arrive."""
    peers, made = sctp_peers, chunks()
    steps = list(COLLISION)
    if delayed:
        steps.insert(delayed + 3, steps.pop(delayed))
    client, vip, backend = peers.served(node, outside=True, masquerade=masquerade)
    seen = ""
    for step in steps:
        side, _, name = step.partition(" ")
        if side == "client":
            out = node.forward(sctp(client, vip, made[name]))
            seen = seen or peers.with_port(out.src, out.payload.sport)
            assert same(out, sctp(seen, backend, made[name])), step
        else:
            out = node.forward(sctp(backend, seen, made[name]))
            assert same(out, sctp(vip, client, made[name])), step
    assert node.states()[0] == 0
