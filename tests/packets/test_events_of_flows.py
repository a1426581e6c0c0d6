"""What is told of connections that end, are answered twice, or are of no Service."""

from __future__ import annotations

from tests.packets.events import Events
from tests.packets.node import Node
from tests.packets.packet import same, tcp
from tests.packets.peers import Peers
from tests.packets.test_events import events, kinds, parts

__all__ = ["events"]


def test_a_direct_flow_that_gets_another_port_is_of_no_service(
    node: Node, events: Events, peers: Peers
) -> None:
    client, _, backend, _ = peers.connected(node)
    assert kinds(events) == ["made", "answered"]
    out = node.forward(peers.opening(client, backend))
    seen = peers.with_port(client, out.payload.sport)
    assert seen != client
    back = node.forward(peers.answer(backend, seen))
    assert same(back, peers.answer(backend, client))
    assert events.read() == []


def test_an_answer_that_is_sent_again_is_told_once(
    node: Node, events: Events, peers: Peers
) -> None:
    client, vip, backend = peers.served(node)
    seen = peers.begin(node, client, vip, backend)
    for _ in range(2):
        node.forward(peers.answer(backend, seen))
    assert kinds(events) == ["made", "answered"]


def test_a_connection_that_one_side_has_closed_ends_as_an_idle_one(
    node: Node, events: Events, tcp_peers: Peers
) -> None:
    client, vip, backend, seen = tcp_peers.connected(node)
    node.forward(tcp(client, vip, "FA"))
    node.forward(tcp(backend, seen, "A"))
    events.read()
    node.age(3601)
    for hook, packet in (("ingress", tcp(client, vip)), ("egress", tcp(backend, seen))):
        node.collect(node.flow(hook, packet))
    (event,) = events.read()
    assert parts(event, "kind", "reason") == ("ended", "idle")
    assert parts(event, "client", "frontend", "backend") == (client, vip, backend)
