"""The filter of ports: what it does not know is not looked up, and it knows every connection.

The filter of every packet test knows nothing at first, so whatever works in this directory was
noted by the programs.
"""

from __future__ import annotations

import pytest
from scapy.packet import Packet

from tests.packets.node import Node, same
from tests.packets.scene import Scene

SEEN_PORT = 20000
"""The only port for masquerading."""


def through(node: Node, hook: str, packet: Packet) -> Packet:
    """Give a packet that must pass to a hook."""
    return {"ingress": node.ingress, "egress": node.egress}[hook](packet)


@pytest.fixture
def connected(node: Node, scene: Scene) -> Node:
    """A node with a masqueraded connection."""
    node.settings(first=SEEN_PORT, ports=1)
    scene.service(node, [scene.backend], masquerade=True)
    scene.connect(node, scene.stranger, scene.vip, scene.backend)
    return node


def test_only_the_ports_of_the_server_side_are_noted_where_packets_with_them_are_translated(
    connected: Node, scene: Scene
) -> None:
    """Ports of clients would fill it."""
    assert connected.filtered() == {
        (scene.protocol, "ingress", "destination", 80),
        (scene.protocol, "egress", "source", 8080),
        (scene.protocol, "egress", "destination", 8080),
        (scene.protocol, "ingress", "source", 8080),
    }


def test_without_masquerade_nothing_is_noted_around_the_wire(node: Node, scene: Scene) -> None:
    scene.service(node, [scene.backend])
    scene.connect(node, scene.client, scene.vip, scene.backend)
    assert node.filtered() == {
        (scene.protocol, "ingress", "destination", 80),
        (scene.protocol, "egress", "source", 8080),
    }


def test_a_direct_flow_is_noted_only_when_its_port_has_to_change(node: Node, scene: Scene) -> None:
    scene.service(node, [scene.backend])
    node.forward(scene.opening(scene.client, scene.backend))
    assert node.filtered() == set()
    scene.connect(node, scene.at(scene.client, 5000), scene.vip, scene.backend)
    before = node.filtered()
    node.forward(scene.opening(scene.at(scene.client, 5000), scene.backend))
    assert node.filtered() - before == {(scene.protocol, "ingress", "destination", 8080)}


def test_a_packet_whose_ports_are_unknown_passes_untouched_though_there_is_an_entry(
    connected: Node, scene: Scene
) -> None:
    """No connection is ever in this state; it shows that nobody looks."""
    packets = [
        ("egress", scene.data(scene.stranger, scene.backend)),
        ("ingress", scene.data(scene.backend, scene.node_place(SEEN_PORT))),
        ("egress", scene.data(scene.backend, scene.stranger)),
    ]
    if scene.protocol == "TCP":  # any datagram to a frontend may be the first
        packets.append(("ingress", scene.data(scene.stranger, scene.vip)))
    connected.fill_filter(0)
    assert all(same(through(connected, *each), each[1]) for each in packets)
    connected.fill_filter(1)
    assert not any(same(through(connected, *each), each[1]) for each in packets)
    assert connected.count("connections") == 4


@pytest.mark.parametrize("hook", ["ingress", "egress"])
@pytest.mark.parametrize("byte", [0, 1], ids=["nothing is known", "everything is known"])
def test_a_packet_without_an_entry_passes_untouched_and_leaves_nothing_behind(
    node: Node, scene: Scene, hook: str, byte: int
) -> None:
    node.fill_filter(byte)
    before = node.filtered()
    for packet in (
        scene.opening(scene.client, scene.backend),
        scene.data(scene.client, scene.backend),
        scene.data(scene.backend, scene.client),
        scene.answer(scene.backend, scene.client),
    ):
        assert same(through(node, hook, packet), packet)
    assert node.count("connections") == node.count("new_connections") == 0
    assert node.filtered() == before


def test_another_flow_with_the_ports_of_a_connection_passes_untouched(
    connected: Node, scene: Scene
) -> None:
    """The filter knows ports, not addresses, and of a port not even all bits."""
    for port in (8080, 8080 + 8192):
        other = scene.at(scene.other_backend, port)
        for packet in (scene.data(scene.stranger, other), scene.data(other, scene.stranger)):
            assert same(connected.forward(packet), packet)
    assert (connected.count("new_connections"), connected.count("connections")) == (0, 4)


def test_a_connection_that_closed_leaves_its_ports_to_those_that_go_on(
    node: Node, scene: Scene
) -> None:
    scene.service(node, [scene.backend])
    for client in (scene.client, scene.stranger):
        scene.connect(node, client, scene.vip, scene.backend)
    closed = node.flow("ingress", scene.opening(scene.client, scene.vip))
    assert node.collect(closed, force=True) == 1
    out = node.forward(scene.data(scene.stranger, scene.vip))
    assert same(out, scene.data(scene.stranger, scene.backend))
