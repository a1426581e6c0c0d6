"""While connections are copied from an older build, the middle of one may have no entry yet.

Without the older build's programs (test_migration.py has them), what could belong to a Service is
dropped until then, and is sent again. Everything else passes.
"""

from __future__ import annotations

import pytest

from tests.packets.node import SHOT, UNSPEC, Node
from tests.packets.packet import same
from tests.packets.peers import TCP_PEERS, UDP_PEERS, Peers

NODE_PORT = 30080


@pytest.fixture(params=["TAKEOVER_ATTACHING", "TAKEOVER_ATTACHED"])
def waiting(request: pytest.FixtureRequest, node: Node, tcp_peers: Peers) -> Peers:
    """A Service, and no connections yet: either build may open them."""
    tcp_peers.service(node, [tcp_peers.backend])
    node.settings(takeover=node.pinned.layout.constant(request.param))
    return tcp_peers


def stranger(peers: Peers) -> str:
    """Return another port of the backend's address, which no Service has."""
    return peers.with_port(peers.backend, 9)


def test_the_middle_of_a_connection_to_a_frontend_waits_where_it_comes_in(
    node: Node, waiting: Peers
) -> None:
    assert node.drops("ingress", waiting.data(waiting.client, waiting.vip))


def test_the_middle_of_a_connection_to_a_node_port_waits_and_that_of_another_port_passes(
    node: Node, waiting: Peers
) -> None:
    waiting.service(node, [waiting.backend], "at-nodes", node_port=NODE_PORT)
    assert node.drops("ingress", waiting.data(waiting.external, waiting.on_node(NODE_PORT)))
    other = waiting.data(waiting.external, waiting.on_node(NODE_PORT + 1))
    assert same(node.ingress(other), other)


@pytest.mark.parametrize("hook", ["ingress", "egress"])
def test_the_middle_of_a_connection_of_an_endpoint_waits(
    node: Node, waiting: Peers, hook: str
) -> None:
    assert node.drops(hook, waiting.data(waiting.backend, waiting.client))
    assert node.drops(hook, waiting.data(waiting.client, waiting.backend))


@pytest.mark.parametrize("hook", ["ingress", "egress"])
def test_the_middle_of_other_connections_passes(node: Node, waiting: Peers, hook: str) -> None:
    packet = waiting.data(stranger(waiting), waiting.client)
    verdict, after = node.run(hook, packet)
    assert verdict == UNSPEC
    assert same(after, packet)


def test_a_frontend_does_not_hold_back_what_leaves(node: Node, waiting: Peers) -> None:
    packet = waiting.data(waiting.client, waiting.vip)
    assert node.run("egress", packet)[0] == UNSPEC


def test_a_first_packet_is_served_meanwhile(node: Node, waiting: Peers) -> None:
    out = node.ingress(waiting.opening(waiting.client, waiting.vip))
    assert same(out, waiting.opening(waiting.client, waiting.backend))


@pytest.mark.parametrize("phase", ["TAKEOVER_ATTACHING", "TAKEOVER_ATTACHED"])
def test_a_datagram_is_served_meanwhile(node: Node, udp_peers: Peers, phase: str) -> None:
    client, vip, backend = udp_peers.served(node)
    node.settings(takeover=node.pinned.layout.constant(phase))
    out = node.ingress(udp_peers.opening(client, vip))
    assert same(out, udp_peers.opening(client, backend))


def test_udp_has_no_middle(node: Node) -> None:
    peers = UDP_PEERS[0]
    peers.service(node, [peers.backend])
    node.settings(takeover=1)
    packet = peers.data(peers.backend, peers.client)
    assert node.run("egress", packet)[0] != SHOT


def test_nothing_waits_when_all_connections_are_copied(node: Node) -> None:
    peers = TCP_PEERS[0]
    peers.service(node, [peers.backend])
    for hook in ("ingress", "egress"):
        assert node.run(hook, peers.data(peers.backend, peers.client))[0] == UNSPEC
