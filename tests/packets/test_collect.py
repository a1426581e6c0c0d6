"""Connections that are over are removed; whether they are is decided in the kernel."""

from __future__ import annotations

import pytest

from tests.packets.node import Node, same, tcp
from tests.packets.scene import Scene

LIFETIMES = {
    "tcp_established_seconds": 6,
    "tcp_half_closed_seconds": 4,
    "tcp_closed_seconds": 2,
    "udp_seconds": 6,
    "sctp_seconds": 6,
}
"""Short, because the clock of a machine that has just started is, too."""

BATCH = 16
"""COLLECT_FLOWS of the C sources."""


def established(node: Node, scene: Scene) -> bytes:
    """Establish a connection; give the key of its forward flow."""
    node.settings(**LIFETIMES)
    scene.service(node, [scene.backend])
    scene.connect(node, scene.client, scene.vip, scene.backend)
    return node.flow("ingress", scene.opening(scene.client, scene.vip))


def test_a_live_connection_is_refused(node: Node, scene: Scene) -> None:
    flow = established(node, scene)
    assert node.collect(flow) == 0
    assert node.collect(flow, crowded=True) == 0
    assert node.count("connections") == 2


@pytest.mark.parametrize("hook", ["ingress", "egress"])
def test_an_idle_connection_goes_with_its_partner(node: Node, scene: Scene, hook: str) -> None:
    established(node, scene)
    packet = {
        "ingress": scene.opening(scene.client, scene.vip),
        "egress": scene.answer(scene.backend, scene.client),
    }[hook]
    node.age(7)
    assert node.collect(node.flow(hook, packet)) == 1
    assert node.count("connections") == 0


def test_lifetimes_are_those_of_the_settings(node: Node, scene: Scene) -> None:
    flow = established(node, scene)
    node.age(5)
    assert node.collect(flow) == 0
    node.settings(tcp_established_seconds=4, udp_seconds=4, sctp_seconds=4)
    assert node.collect(flow) == 1


def test_a_connection_that_only_one_side_uses_is_alive(node: Node, scene: Scene) -> None:
    flow = established(node, scene)
    node.age(7)
    node.forward(scene.data(scene.backend, scene.client))
    assert node.collect(flow) == 0


def test_a_connection_used_after_the_collection_began_is_alive(node: Node, scene: Scene) -> None:
    """Another CPU may note a time that is later than the one the collection read at its start."""
    flow = established(node, scene)
    node.age(-60)
    assert node.collect(flow) == 0
    assert node.count("connections") == 2


@pytest.mark.parametrize("ending", ["FIN both ways", "RST"])
def test_a_closed_connection_is_kept_for_a_while(node: Node, tcp_scene: Scene, ending: str) -> None:
    flow = established(node, tcp_scene)
    client, vip, backend = tcp_scene.client, tcp_scene.vip, tcp_scene.backend
    if ending == "RST":
        node.forward(tcp(client, vip, "R"))
    else:
        tcp_scene.close(node, client, vip, backend, client)
    node.age(1)
    assert node.collect(flow) == 0
    node.age(3)
    assert node.collect(flow) == 1
    assert node.count("connections") == 0


def test_a_closed_connection_goes_early_when_it_is_crowded(node: Node, tcp_scene: Scene) -> None:
    """Not at once: its last acknowledgement may still be on its way."""
    flow = established(node, tcp_scene)
    node.settings(tcp_closed_seconds=4)
    tcp_scene.close(node, tcp_scene.client, tcp_scene.vip, tcp_scene.backend, tcp_scene.client)
    node.age(1)
    assert node.collect(flow, crowded=True) == 0
    node.age(3)
    assert node.collect(flow) == 0
    assert node.collect(flow, crowded=True) == 1


def test_what_is_not_established_has_a_lifetime_of_its_own(node: Node, scene: Scene) -> None:
    scene.service(node, [scene.backend])
    node.settings(half_open_seconds=7, udp_seconds=60)
    node.ingress(scene.opening(scene.client, scene.vip))
    flow = node.flow("ingress", scene.opening(scene.client, scene.vip))
    node.age(6)
    assert node.collect(flow) == 0
    assert node.collect(flow, crowded=True) == 1
    node.ingress(scene.opening(scene.client, scene.vip))
    node.age(8)
    assert node.collect(flow) == 1
    assert node.states() == (0, 0)


def test_each_protocol_has_a_lifetime_of_its_own(node: Node, scene: Scene) -> None:
    flow = established(node, scene)
    names = {"TCP": "tcp_established_seconds", "UDP": "udp_seconds", "SCTP": "sctp_seconds"}
    for name in names.values():
        longer = {other: 60 for other in names.values() if other != name}
        node.settings(**LIFETIMES | longer)
        node.age(8)
        assert node.collect(flow) == (names[scene.protocol] == name)


def test_a_half_closed_connection_is_kept_longer(node: Node, tcp_scene: Scene) -> None:
    flow = established(node, tcp_scene)
    node.forward(tcp(tcp_scene.client, tcp_scene.vip, "FA"))
    node.age(3)
    assert node.collect(flow) == 0
    node.age(5)
    assert node.collect(flow) == 1


def test_a_closed_connection_whose_port_is_in_use_again_is_alive(
    node: Node, tcp_scene: Scene
) -> None:
    client, vip, backend = tcp_scene.client, tcp_scene.vip, tcp_scene.backend
    flow = established(node, tcp_scene)
    tcp_scene.close(node, client, vip, backend, client)
    node.age(3)
    tcp_scene.connect(node, client, vip, backend)
    assert node.collect(flow) == 0


def test_force_removes_whatever_the_state(node: Node, scene: Scene) -> None:
    """UDP to a backend that serves no more is told apart by no state."""
    flow = established(node, scene)
    assert node.collect(flow, force=True) == 1
    assert node.count("connections") == 0
    node.ingress(scene.opening(scene.client, scene.vip))
    assert node.collect(flow, force=True) == 1
    assert node.states() == (0, 0)


def test_unknown_flows_do_not_matter(node: Node, scene: Scene) -> None:
    flow = established(node, scene)
    unknown = node.flow("egress", scene.opening(scene.client, scene.vip))
    assert node.collect(unknown, flow, unknown, force=True) == 1


def test_a_whole_batch_is_judged_one_by_one(node: Node, scene: Scene) -> None:
    node.settings(**LIFETIMES)
    scene.service(node, [scene.backend])
    clients = [scene.at(scene.client, 5000 + number) for number in range(BATCH)]
    flows = []
    for client in clients:
        scene.connect(node, client, scene.vip, scene.backend)
        flows.append(node.flow("ingress", scene.opening(client, scene.vip)))
    node.age(7)
    alive = scene.data(clients[-1], scene.vip)
    node.forward(alive)
    assert node.collect(*flows) == BATCH - 1
    assert same(node.forward(alive), scene.data(clients[-1], scene.backend))
