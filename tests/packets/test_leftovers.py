"""Entries of a closed connection must not affect the next use of its ports."""

from __future__ import annotations

import pytest

from tests.packets.endings import ENDINGS, end
from tests.packets.node import Node
from tests.packets.packet import same, tcp
from tests.packets.peers import Peers, address_of

LINGERED = 3
"""Seconds after which no more packets of a closed connection are expected."""


def open_and_end(
    node: Node, peers: Peers, ending: str, client: str, *, masquerade: bool = False
) -> None:
    """Open and end a connection through the first of two frontends with one backend."""
    peers.service(node, [peers.backend], masquerade=masquerade)
    peers.service(node, [peers.backend], "other", frontends=[peers.other_vip])
    end(node, peers, ending, client, peers.connect(node, client, peers.vip, peers.backend))


def untouched_both_ways(node: Node, client: str, backend: str) -> bool:
    """True if all packets of a direct connection pass unchanged."""
    return all(
        same(node.forward(packet), packet)
        for packet in (
            tcp(client, backend),
            tcp(backend, client, "SA"),
            tcp(client, backend, "A"),
            tcp(client, backend, "PA", b"question"),
            tcp(backend, client, "PA", b"reply"),
            tcp(backend, client, "FA"),
            tcp(client, backend, "FA"),
        )
    )


@ENDINGS
@pytest.mark.parametrize("masquerade", [False, True], ids=["plain", "masqueraded"])
def test_a_direct_connection_after_a_closed_one_passes_unchanged(
    node: Node, tcp_peers: Peers, ending: str, masquerade: bool
) -> None:
    client, _, backend, seen = tcp_peers.connected(node, outside=True, masquerade=masquerade)
    end(node, tcp_peers, ending, client, seen)
    assert untouched_both_ways(node, client, backend)
    assert node.counter("source_ports_changed") == 0


def test_a_direct_connection_after_a_refused_one_passes_unchanged(
    node: Node, tcp_peers: Peers
) -> None:
    client, vip, backend = tcp_peers.served(node)
    node.forward(tcp(client, vip))
    node.forward(tcp(backend, client, "RA"))
    assert untouched_both_ways(node, client, backend)


@ENDINGS
def test_a_direct_connection_to_a_backend_that_serves_no_more_passes_unchanged(
    node: Node, tcp_peers: Peers, ending: str
) -> None:
    client, _, backend, seen = tcp_peers.connected(node)
    end(node, tcp_peers, ending, client, seen)
    tcp_peers.service(node, [tcp_peers.other_backend])
    assert untouched_both_ways(node, client, backend)


def test_a_direct_connection_beside_an_open_one_to_a_removed_backend_gets_its_own_replies(
    node: Node, peers: Peers
) -> None:
    """Established connections stay with a terminating backend, so a collision is still possible."""
    client, _, backend, _ = peers.connected(node)
    peers.service(node, [peers.other_backend])
    out = node.forward(peers.opening(client, backend))
    back = node.forward(peers.answer(backend, peers.with_port(client, out.payload.sport)))
    assert same(back, peers.answer(backend, client))


@ENDINGS
def test_another_frontend_after_a_closed_connection_keeps_the_client_port(
    node: Node, tcp_peers: Peers, ending: str
) -> None:
    client, backend = tcp_peers.client, tcp_peers.backend
    open_and_end(node, tcp_peers, ending, client)
    node.age(LINGERED)
    assert tcp_peers.connect(node, client, tcp_peers.other_vip, backend) == client


@ENDINGS
def test_another_frontend_after_a_masqueraded_connection_is_not_masqueraded(
    node: Node, tcp_peers: Peers, ending: str
) -> None:
    client, backend = tcp_peers.external, tcp_peers.backend
    open_and_end(node, tcp_peers, ending, client, masquerade=True)
    node.age(LINGERED)
    assert tcp_peers.connect(node, client, tcp_peers.other_vip, backend) == client


@ENDINGS
def test_another_frontend_right_after_a_closed_connection_leaves_its_last_packets_alone(
    node: Node, tcp_peers: Peers, ending: str
) -> None:
    """The last acknowledgement may still arrive, and both would share one 5-tuple."""
    client, vip, backend = tcp_peers.client, tcp_peers.vip, tcp_peers.backend
    open_and_end(node, tcp_peers, ending, client)
    other = tcp_peers.connect(node, client, tcp_peers.other_vip, backend)
    assert (address_of(other), other != client) == (address_of(client), True)
    for flags in ("A", "R"):
        assert same(node.forward(tcp(client, vip, flags)), tcp(client, backend, flags))
        assert same(node.forward(tcp(backend, client, flags)), tcp(vip, client, flags))
    out = node.forward(tcp(client, tcp_peers.other_vip, "PA"))
    assert same(out, tcp(other, backend, "PA"))


@pytest.mark.parametrize("closed", ["FA", "R"])
def test_a_masquerade_whose_connection_has_gone_goes_when_a_direct_connection_begins(
    node: Node, tcp_peers: Peers, closed: str
) -> None:
    """Closed or not: it would masquerade the direct connection."""
    client, vip, backend, _ = tcp_peers.connected(node, outside=True, masquerade=True)
    node.forward(tcp(client, vip, closed))
    for hook, packet in (("ingress", tcp(client, vip)), ("egress", tcp(backend, client))):
        node.pinned.map("connections").delete(node.flow(hook, packet))
    node.ingress(tcp(client, backend))
    assert node.count("connections") == 0
