"""Which source ports masqueraded connections get."""

from __future__ import annotations

import socket

import pytest

from tests.packets.node import SHOT, Node, same, tcp
from tests.packets.scene import TCP_SCENES, UDP_SCENES, Scene


def test_many_clients_get_ports_of_their_own_within_the_range(node: Node, scene: Scene) -> None:
    scene.service(node, [scene.backend], masquerade=True)
    node.settings(first=20000, ports=1000)
    seen = set()
    for number in range(400):
        client = scene.at(scene.stranger, 1024 + number)
        out = node.forward(scene.opening(client, scene.vip))
        seen.add(out.payload.sport)
    assert len(seen) == 400
    assert min(seen) >= 20000
    assert max(seen) < 21000


def test_the_whole_range_is_used(node: Node, scene: Scene) -> None:
    scene.service(node, [scene.backend], masquerade=True)
    node.settings(first=20000, ports=16)
    seen = {
        node.forward(scene.opening(scene.at(scene.stranger, port), scene.vip)).payload.sport
        for port in range(5000, 5016)
    }
    assert seen == set(range(20000, 20016))


def exhaust(node: Node, scene: Scene, frontend: str = "") -> dict[str, str]:
    """Open four connections in a range of four ports; give client -> client as seen."""
    seen = {}
    for port in range(5000, 5004):
        client = scene.at(scene.stranger, port)
        out = node.forward(scene.opening(client, frontend or scene.vip))
        seen[client] = scene.node_place(out.payload.sport)
    assert len(set(seen.values())) == 4
    return seen


def test_when_all_ports_are_taken_a_connection_is_dropped_and_counted(
    node: Node, scene: Scene
) -> None:
    scene.service(node, [scene.backend], masquerade=True)
    node.settings(first=20000, ports=4)
    exhaust(node, scene)
    fifth = scene.at(scene.stranger, 5004)
    assert node.drops("egress", node.ingress(scene.opening(fifth, scene.vip)))
    assert node.counter("dropped__masquerade_ports_exhausted") == 1


def test_the_port_of_a_closed_connection_is_used_again(node: Node, tcp_scene: Scene) -> None:
    vip, backend = tcp_scene.vip, tcp_scene.backend
    tcp_scene.service(node, [backend], masquerade=True)
    node.settings(first=20000, ports=4)
    clients = exhaust(node, tcp_scene)
    for client, seen in clients.items():
        node.forward(tcp(backend, seen, "SA"))
        node.forward(tcp(client, vip, "A"))
    client, seen = next(iter(clients.items()))
    tcp_scene.close(node, client, vip, backend, seen)
    fifth = tcp_scene.at(tcp_scene.stranger, 5004)
    assert node.drops("egress", node.ingress(tcp(fifth, vip))), "its last packets may still come"
    node.age(3)
    assert same(node.forward(tcp(fifth, vip)), tcp(seen, backend))
    assert same(node.forward(tcp(backend, seen, "SA")), tcp(vip, fifth, "SA"))


def test_the_port_of_a_refused_connection_is_used_again(node: Node, tcp_scene: Scene) -> None:
    vip, backend = tcp_scene.vip, tcp_scene.backend
    tcp_scene.service(node, [backend], masquerade=True)
    node.settings(first=20000, ports=4)
    client, seen = next(iter(exhaust(node, tcp_scene).items()))
    assert same(node.forward(tcp(backend, seen, "RA")), tcp(vip, client, "RA"))
    fifth = tcp_scene.at(tcp_scene.stranger, 5004)
    assert node.drops("egress", node.ingress(tcp(fifth, vip))), "its last packets may still come"
    node.age(3)
    assert same(node.forward(tcp(fifth, vip)), tcp(seen, backend))


def half_open(node: Node, scene: Scene) -> dict[str, str]:
    """Take all four ports by connections that are begun and not established."""
    scene.service(node, [scene.backend], masquerade=True)
    node.settings(first=20000, ports=4)
    clients = exhaust(node, scene)
    for client, seen in clients.items():
        assert scene.begin(node, client, scene.vip, scene.backend) == seen
    return clients


def test_the_port_of_a_connection_that_was_never_established_is_used_again_after_5_seconds(
    node: Node, scene: Scene
) -> None:
    clients = half_open(node, scene)
    fifth = scene.at(scene.stranger, 5004)
    node.age(4)
    assert node.drops("egress", node.ingress(scene.opening(fifth, scene.vip)))
    assert node.counter("dropped__masquerade_ports_exhausted") == 1
    node.age(6)
    assert scene.connect(node, fifth, scene.vip, scene.backend) in clients.values()
    assert node.counter("dropped__masquerade_ports_exhausted") == 1


def test_all_ports_of_an_abandoned_flood_are_used_again_each_by_one(
    node: Node, scene: Scene
) -> None:
    clients = half_open(node, scene)
    node.age(6)
    later = [scene.at(scene.stranger, 6000 + number) for number in range(4)]
    seen = {scene.connect(node, client, scene.vip, scene.backend): client for client in later}
    assert set(seen) == set(clients.values())
    for port, client in seen.items():
        back = node.forward(scene.data(scene.backend, port))
        assert same(back, scene.data(scene.vip, client))


def test_who_comes_back_after_its_port_was_taken_does_not_speak_for_the_new_owner(
    node: Node, scene: Scene
) -> None:
    clients = half_open(node, scene)
    node.age(6)
    fifth = scene.at(scene.stranger, 5004)
    seen = scene.connect(node, fifth, scene.vip, scene.backend)
    robbed = next(client for client, port in clients.items() if port == seen)
    verdict, out = node.run("egress", node.ingress(scene.data(robbed, scene.vip)))
    assert verdict == SHOT or scene.at(out.src, out.payload.sport) != seen
    back = node.forward(scene.data(scene.backend, seen))
    assert same(back, scene.data(scene.vip, fifth))


def test_the_port_of_an_established_connection_is_kept_however_long_it_is_silent(
    node: Node, scene: Scene
) -> None:
    scene.service(node, [scene.backend], masquerade=True)
    node.settings(first=20000, ports=4)
    for port in range(5000, 5004):
        scene.connect(node, scene.at(scene.stranger, port), scene.vip, scene.backend)
    node.age(60)
    fifth = scene.at(scene.stranger, 5004)
    assert node.drops("egress", node.ingress(scene.opening(fifth, scene.vip)))
    assert node.counter("dropped__masquerade_ports_exhausted") == 1


def test_another_backend_has_all_ports_of_its_own(node: Node, scene: Scene) -> None:
    scene.service(node, [scene.backend], masquerade=True)
    scene.service(
        node, [scene.other_backend], "other", frontends=[scene.other_vip], masquerade=True
    )
    node.settings(first=20000, ports=4)
    first = exhaust(node, scene)
    second = exhaust(node, scene, scene.other_vip)
    assert set(first.values()) == set(second.values())
    for client, seen in second.items():
        back = node.forward(scene.answer(scene.other_backend, seen))
        assert same(back, scene.answer(scene.other_vip, client))


def test_another_protocol_has_all_ports_of_its_own(node: Node, udp_scene: Scene) -> None:
    udp_scene.service(node, [udp_scene.backend], masquerade=True)
    node.settings(first=20000, ports=4)
    exhaust(node, udp_scene)
    node.service(
        "tcp",
        [udp_scene.backend],
        frontends=[udp_scene.vip],
        masquerade=True,
        family=udp_scene.family,
    )
    assert node.forward(tcp(udp_scene.stranger, udp_scene.vip)).payload.sport in range(20000, 20004)


@pytest.mark.parametrize("scene", TCP_SCENES + UDP_SCENES, ids=str)
def test_a_port_on_which_the_node_itself_listens_is_not_taken(node: Node, scene: Scene) -> None:
    """Of SCTP's sockets no helper of the kernel knows."""
    family = socket.AF_INET6 if scene.family == 6 else socket.AF_INET
    kind = socket.SOCK_STREAM if scene.protocol == "TCP" else socket.SOCK_DGRAM
    scene.service(node, [scene.backend], masquerade=True)
    node.settings(first=20000, ports=2)
    with socket.socket(family, kind) as own:
        own.bind(("", 20000))
        if scene.protocol == "TCP":
            own.listen()
        out = node.forward(scene.opening(scene.at(scene.stranger, 5000), scene.vip))
        assert out.payload.sport == 20001
        second = scene.opening(scene.at(scene.stranger, 5001), scene.vip)
        assert node.drops("egress", node.ingress(second))
