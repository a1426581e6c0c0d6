"""An entry that has lost its partner, and the key of the partner belongs to another connection.

The two connections differ in one field only. Neither is translated, or removed, as the other.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import pytest
from scapy.packet import Packet

from bpfsvc.agent.flows.connection_gc import ConnectionGc
from tests.packets.node import UNSPEC, Node
from tests.packets.packet import same, tcp
from tests.packets.peers import Peers
from tests.packets.test_closed_flows import DUE, age
from tests.packets.test_connection_gc import KEEP
from tests.packets.test_gc_program import LIFETIMES

FREE = 10005
"""A port that the programs choose."""


class Left(NamedTuple):
    """The ends of the connection that has lost an entry, and packets of the other one."""

    client: str
    frontend: str
    comes: Packet
    goes: Packet

    def works(self, node: Node) -> bool:
        """True if the other connection is still translated."""
        return same(node.forward(self.comes), self.goes)


def of_another_frontend_port(node: Node, peers: Peers) -> Left:
    client, backend, second = peers.client, peers.backend, peers.with_port(peers.vip, 81)
    peers.service(node, [backend], frontends=[peers.vip, second])
    node.forward(tcp(client, peers.vip))
    node.pinned.map("connections").delete(node.flow("egress", tcp(backend, client)))
    assert peers.begin(node, client, second, backend) == client
    return Left(client, peers.vip, tcp(client, second, "A"), tcp(client, backend, "A"))


def of_another_frontend(node: Node, peers: Peers) -> Left:
    """The addresses of IPv6 differ in their first word."""
    client, backend = peers.client, peers.backend
    other = "[fd97::10]:80" if peers.family == 6 else peers.other_vip
    peers.service(node, [backend], frontends=[peers.vip, other])
    node.forward(tcp(client, peers.vip))
    node.pinned.map("connections").delete(node.flow("egress", tcp(backend, client)))
    assert peers.begin(node, client, other, backend) == client
    return Left(client, peers.vip, tcp(client, other, "A"), tcp(client, backend, "A"))


def of_another_client_port(node: Node, peers: Peers) -> Left:
    """The other connection has got the port, as its client's own is one of a direct flow."""
    backend, client = peers.backend, peers.with_port(peers.client, FREE)
    node.settings(first=FREE, ports=1)
    peers.service(node, [backend])
    peers.service(node, [backend], "other", frontends=[peers.other_vip])
    node.forward(tcp(client, peers.vip))
    node.pinned.map("connections").delete(node.flow("egress", tcp(backend, client)))
    node.forward(tcp(peers.client, backend))
    assert peers.begin(node, peers.client, peers.other_vip, backend) == client
    return Left(
        client, peers.vip, tcp(peers.client, peers.other_vip, "A"), tcp(client, backend, "A")
    )


def of_another_client(node: Node, peers: Peers) -> Left:
    """The other connection has got the only port of the masquerade."""
    vip, backend = peers.vip, peers.backend
    other = peers.with_port("192.168.50.10" if peers.family == 4 else "fd51::9", 40000)
    node.settings(ports=1)
    peers.service(node, [backend], masquerade=True)
    out = node.forward(tcp(peers.external, vip))
    seen = peers.with_port(out.src, out.payload.sport)
    node.pinned.map("connections").delete(node.flow("ingress", tcp(backend, seen)))
    assert peers.begin(node, other, vip, backend) == seen
    return Left(peers.external, vip, tcp(other, vip, "A"), tcp(seen, backend, "A"))


KINDS = {
    "the frontend's address": of_another_frontend,
    "the frontend's port": of_another_frontend_port,
    "the client's port": of_another_client_port,
    "the client's address": of_another_client,
}

Kind = Callable[[Node, Peers], Left]


@pytest.mark.parametrize("by", KINDS)
def test_a_packet_is_dropped_if_the_answers_to_it_would_be_those_of_another_connection(
    node: Node, tcp_peers: Peers, by: str
) -> None:
    left = KINDS[by](node, tcp_peers)
    verdict, routed = node.run("ingress", tcp(left.client, left.frontend, "A"))
    if verdict == UNSPEC:
        assert node.drops("egress", routed)
    assert node.counter("dropped__evicted") == 1
    assert left.works(node)


@pytest.mark.parametrize(
    "kind", [of_another_frontend, of_another_frontend_port, of_another_client_port]
)
def test_an_entry_that_is_closed_alone_is_not_taken_from_the_queue_with_another_connections(
    node: Node, tcp_peers: Peers, kind: Kind
) -> None:
    """The entry that is left goes when the whole table is read."""
    left = kind(node, tcp_peers)
    node.run("ingress", tcp(left.client, left.frontend, "R"))
    entries = node.count("connections")
    node.settings(**LIFETIMES)
    assert age(node, DUE) == (1, 0)
    assert ConnectionGc(node.pinned, KEEP, 60).remove_closed() == 0
    assert age(node, DUE) == (0, 0)
    assert node.count("connections") == entries
    assert left.works(node)


def test_a_closed_entry_without_a_partner_is_left_to_who_reads_the_whole_table(
    node: Node, tcp_peers: Peers
) -> None:
    client, vip, backend, seen = tcp_peers.connected(node)
    tcp_peers.close(node, client, vip, backend, seen)
    node.pinned.map("connections").delete(node.flow("ingress", tcp(client, vip)))
    gc = ConnectionGc(node.pinned, KEEP, 60)
    node.settings(**LIFETIMES)
    assert age(node, DUE) == (1, 0)
    assert gc.remove_closed() == 0
    assert age(node, DUE) == (0, 0)
    assert node.count("connections") == 1
    assert node.collect(node.flow("egress", tcp(backend, seen))) == 1
