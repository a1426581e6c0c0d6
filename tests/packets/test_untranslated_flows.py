"""Direct connections of pods by the stack: after the first packet no connection is looked for.

Most nodes with policies have little else: what sockets have translated is direct for packets.
"""

from __future__ import annotations

import pytest

from tests.packets.node import UNSPEC, Node
from tests.packets.packet import same, tcp
from tests.packets.peers import Peers

NOT_TRANSLATED = 8


def states(node: Node) -> list[int]:
    """Return the states of all flows that are noted."""
    table = node.pinned.map("fast_flows")
    record = node.pinned.layout.maps["fast_flows"].value
    seen = [int(record.unpack(value)["state"]) for _, value in table.items() if any(value)]
    return [state for state in seen if state]


def forget(node: Node) -> None:
    """Forget all flows: other tests leave theirs."""
    table = node.pinned.map("fast_flows")
    table.update_many([(key, bytes(len(value))) for key, value in table.items() if any(value)])


@pytest.fixture
def direct(node: Node, tcp_peers: Peers) -> Node:
    """A node where a client has opened a connection to a backend's own address."""
    forget(node)
    tcp_peers.service(node, [tcp_peers.backend])
    packet = tcp(tcp_peers.client, tcp_peers.backend)
    assert same(node.forward(packet), packet)
    back = tcp(tcp_peers.backend, tcp_peers.client, "SA")
    assert same(node.forward(back), back)
    return node


def misleading(node: Node, peers: Peers) -> None:
    """Write an entry that would translate the client's packets, if one looked for it."""
    other = peers.with_port(peers.external, 40001)
    peers.connect(node, other, peers.vip, peers.backend)
    connections = node.pinned.map("connections")
    entry = connections.lookup(node.flow("egress", tcp(peers.backend, other)))
    assert entry
    for hook in ("ingress", "egress"):
        connections.update(node.flow(hook, tcp(peers.client, peers.backend)), entry)
        connections.update(node.flow(hook, tcp(peers.backend, peers.client)), entry)


def test_packets_in_the_middle_pass_without_a_look(direct: Node, tcp_peers: Peers) -> None:
    assert states(direct) == [NOT_TRANSLATED]
    misleading(direct, tcp_peers)
    for ends in ((tcp_peers.client, tcp_peers.backend), (tcp_peers.backend, tcp_peers.client)):
        for hook in ("ingress", "egress"):
            packet = tcp_peers.data(*ends)
            verdict, frame = direct.run(hook, packet)
            assert verdict == UNSPEC
            assert same(frame, packet)


@pytest.mark.parametrize("flags", ["S", "SA"])
def test_what_begins_a_connection_is_looked_for(direct: Node, tcp_peers: Peers, flags: str) -> None:
    misleading(direct, tcp_peers)
    packet = tcp(tcp_peers.backend, tcp_peers.client, flags)
    assert not same(direct.run("egress", packet)[1], packet)


def test_a_connection_through_a_frontend_that_takes_the_ports_over_is_translated(
    direct: Node, tcp_peers: Peers
) -> None:
    client, vip, backend = tcp_peers.client, tcp_peers.vip, tcp_peers.backend
    for ends in ((client, backend), (backend, client)):
        direct.forward(tcp(*ends, "FA"))
    direct.age_direct(3)
    assert same(direct.forward(tcp(client, vip)), tcp(client, backend))
    assert states(direct) == []
    assert same(direct.forward(tcp(backend, client, "SA")), tcp(vip, client, "SA"))
    assert same(direct.forward(tcp(client, vip, "A")), tcp(client, backend, "A"))
    assert same(direct.forward(tcp_peers.data(backend, client)), tcp_peers.data(vip, client))


def test_where_the_fast_path_serves_nothing_is_noted_so(node: Node, tcp_peers: Peers) -> None:
    forget(node)
    node.settings(fast_path=1)
    tcp_peers.service(node, [tcp_peers.backend])
    node.ingress(tcp(tcp_peers.client, tcp_peers.backend))
    assert NOT_TRANSLATED not in states(node)


def test_what_others_than_pods_open_is_not_noted(node: Node, tcp_peers: Peers) -> None:
    """The address may become a frontend's, and its packets are then looked at."""
    forget(node)
    tcp_peers.service(node, [tcp_peers.backend])
    node.ingress(tcp(tcp_peers.external, tcp_peers.backend))
    assert states(node) == []


def test_what_comes_while_connections_are_copied_is_not_noted(node: Node, tcp_peers: Peers) -> None:
    """An older build may have translated it at the interface before, so it only looks direct."""
    forget(node)
    client, vip, backend, _ = tcp_peers.connected(node)
    connections = node.pinned.map("connections")
    copied = list(connections.items())
    connections.delete_many([key for key, _ in copied])
    node.settings(takeover=1)
    opening = tcp(client, backend)
    assert same(node.ingress(opening), opening)
    connections.update_many(copied)
    node.settings()
    assert same(node.forward(tcp_peers.data(backend, client)), tcp_peers.data(vip, client))
