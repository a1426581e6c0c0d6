"""A client port that is reused through the same frontend."""

from __future__ import annotations

import pytest
from scapy.packet import Packet

from tests.packets.endings import ENDINGS, end
from tests.packets.node import Node
from tests.packets.packet import same, tcp
from tests.packets.peers import Peers

KINDS = pytest.mark.parametrize("masquerade", [False, True], ids=["plain", "masqueraded"])


def replace_backend(node: Node, peers: Peers, masquerade: bool) -> None:
    """Replace the Service's only backend."""
    peers.service(node, [peers.other_backend], masquerade=masquerade)


@KINDS
@ENDINGS
def test_a_syn_on_a_closed_connection_chooses_a_backend_again(
    node: Node, tcp_peers: Peers, masquerade: bool, ending: str
) -> None:
    client, vip, backend, seen = tcp_peers.connected(node, outside=True, masquerade=masquerade)
    replace_backend(node, tcp_peers, masquerade)
    assert same(node.forward(tcp(client, vip, "PA")), tcp(seen, backend, "PA"))
    end(node, tcp_peers, ending, client, seen)
    assert tcp_peers.connect(node, client, vip, tcp_peers.other_backend)
    assert node.counter("connections_reopened") >= 1
    out = node.forward(tcp(client, vip, "PA", b"hi"))
    assert out.dst == tcp(client, tcp_peers.other_backend).dst


@KINDS
def test_a_new_choice_of_the_same_backend_works_as_a_new_connection(
    node: Node, tcp_peers: Peers, masquerade: bool
) -> None:
    client, vip, backend = tcp_peers.served(node, outside=True, masquerade=masquerade)
    for _ in range(4):
        seen = tcp_peers.connect(node, client, vip, backend)
        tcp_peers.close(node, client, vip, backend, seen)
    assert node.counter("connections_reopened") == 3
    assert node.counter("source_ports_changed") == 0
    assert node.count("connections") == (4 if masquerade else 2)


def test_a_syn_after_a_refusal_chooses_a_backend_again(node: Node, tcp_peers: Peers) -> None:
    client, vip, backend = tcp_peers.served(node)
    node.forward(tcp(client, vip))
    node.forward(tcp(backend, client, "RA"))
    replace_backend(node, tcp_peers, masquerade=False)
    assert same(node.forward(tcp(client, vip)), tcp(client, tcp_peers.other_backend))


@KINDS
def test_a_retransmitted_syn_keeps_its_backend(
    node: Node, tcp_peers: Peers, masquerade: bool
) -> None:
    client, vip, _ = tcp_peers.served(node, outside=True, masquerade=masquerade)
    first = node.forward(tcp(client, vip))
    replace_backend(node, tcp_peers, masquerade)
    assert same(node.forward(tcp(client, vip)), first)


@KINDS
@pytest.mark.parametrize("half_closed", [False, True], ids=["open", "half closed"])
def test_a_syn_on_a_connection_that_is_not_closed_keeps_its_backend(
    node: Node, tcp_peers: Peers, masquerade: bool, half_closed: bool
) -> None:
    client, vip, backend, seen = tcp_peers.connected(node, outside=True, masquerade=masquerade)
    if half_closed:
        node.forward(tcp(client, vip, "FA"))
    replace_backend(node, tcp_peers, masquerade)
    assert same(node.forward(tcp(client, vip)), tcp(seen, backend))


def test_a_challenge_ack_to_the_syn_arrives_as_from_the_frontend(
    node: Node, tcp_peers: Peers
) -> None:
    """RFC 5961: the backend answers a SYN on an open connection with an ACK."""
    client, vip, backend, _ = tcp_peers.connected(node)
    node.forward(tcp(client, vip))
    assert same(node.forward(tcp(backend, client, "A")), tcp(vip, client, "A"))


def give_up(node: Node, peers: Peers, *, masquerade: bool) -> tuple[Packet, str]:
    """Have a client reset what its backend has not answered, and the Service another backend.

    Return the client's first packet as it has left, and its address as the backend sees it.
    """
    client, vip, backend = peers.served(node, outside=True, masquerade=masquerade)
    first = node.forward(tcp(client, vip))
    seen = peers.with_port(first.src, first.payload.sport)
    assert same(node.forward(tcp(backend, seen, "A")), tcp(vip, client, "A"))
    assert same(node.forward(tcp(client, vip, "R")), tcp(seen, backend, "R"))
    replace_backend(node, peers, masquerade)
    return first, seen


@KINDS
def test_a_client_that_resets_what_was_not_answered_tries_the_same_again(
    node: Node, tcp_peers: Peers, masquerade: bool
) -> None:
    """The backend still has a half-open connection by the port: it answers a SYN with an ACK.

    The client resets this, and repeats its SYN. By another port the SYN could meet another
    half-open connection.
    """
    first, seen = give_up(node, tcp_peers, masquerade=masquerade)
    client, vip, backend = tcp_peers.external, tcp_peers.vip, tcp_peers.backend
    assert same(node.forward(tcp(client, vip)), first)
    assert same(node.forward(tcp(backend, seen, "SA")), tcp(vip, client, "SA"))
    assert same(node.forward(tcp(client, vip, "A")), tcp(seen, backend, "A"))
    assert node.counter("connections_reopened") == 0


@KINDS
def test_a_syn_some_seconds_after_such_a_reset_chooses_a_backend_again(
    node: Node, tcp_peers: Peers, masquerade: bool
) -> None:
    give_up(node, tcp_peers, masquerade=masquerade)
    node.age(3)
    client, vip = tcp_peers.external, tcp_peers.vip
    assert node.forward(tcp(client, vip)).dst == tcp(client, tcp_peers.other_backend).dst
