"""Two flows of one client that would be the same 5-tuple behind the translation."""

from __future__ import annotations

from tests.packets.node import Node, same
from tests.packets.scene import Scene


def test_a_direct_connection_after_one_through_the_frontend_gets_another_port(
    node: Node, scene: Scene
) -> None:
    client, vip, backend = scene.client, scene.vip, scene.backend
    scene.service(node, [backend])
    scene.connect(node, client, vip, backend)
    out = node.forward(scene.opening(client, backend))
    seen = scene.at(client, out.payload.sport)
    assert seen != client
    assert same(out, scene.opening(seen, backend))
    assert node.counter("source_ports_changed") == 1
    _both_hear_their_own(node, scene, direct_as=seen, vip_as=client)


def test_a_connection_through_the_frontend_after_a_direct_one_gets_another_port(
    node: Node, scene: Scene
) -> None:
    client, vip, backend = scene.client, scene.vip, scene.backend
    scene.service(node, [backend])
    assert same(node.forward(scene.opening(client, backend)), scene.opening(client, backend))
    back = scene.answer(backend, client)
    assert same(node.forward(back), back)
    out = node.forward(scene.opening(client, vip))
    seen = scene.at(client, out.payload.sport)
    assert seen != client
    assert same(out, scene.opening(seen, backend))
    _both_hear_their_own(node, scene, direct_as=client, vip_as=seen)


def _both_hear_their_own(node: Node, scene: Scene, direct_as: str, vip_as: str) -> None:
    client, vip, backend = scene.client, scene.vip, scene.backend
    for packet in (scene.answer, scene.data):
        assert same(node.forward(packet(backend, direct_as)), packet(backend, client))
        assert same(node.forward(packet(backend, vip_as)), packet(vip, client))
        assert same(node.forward(scene.data(client, backend)), scene.data(direct_as, backend))
        assert same(node.forward(scene.data(client, vip)), scene.data(vip_as, backend))


def test_a_retransmitted_first_packet_keeps_its_changed_port(node: Node, scene: Scene) -> None:
    client, vip, backend = scene.client, scene.vip, scene.backend
    scene.service(node, [backend])
    scene.connect(node, client, vip, backend)
    first = node.forward(scene.opening(client, backend))
    assert same(node.forward(scene.opening(client, backend)), first)


def test_a_retransmitted_first_packet_of_a_direct_connection_stays_as_it_is(
    node: Node, scene: Scene
) -> None:
    scene.service(node, [scene.backend])
    for _ in range(3):
        packet = scene.opening(scene.client, scene.backend)
        assert same(node.forward(packet), packet)
    assert node.counter("direct_flows_noticed") == 1


def test_two_frontends_that_share_a_backend_tell_one_client_port_apart(
    node: Node, scene: Scene
) -> None:
    client, backend = scene.client, scene.backend
    scene.service(node, [backend])
    scene.service(node, [backend], "other", frontends=[scene.other_vip])
    scene.connect(node, client, scene.vip, backend)
    seen = scene.connect(node, client, scene.other_vip, backend)
    assert seen != client
    for frontend, known_as in ((scene.vip, client), (scene.other_vip, seen)):
        out = node.forward(scene.data(client, frontend))
        assert same(out, scene.data(known_as, backend))
        back = node.forward(scene.data(backend, known_as))
        assert same(back, scene.data(frontend, client))


def test_two_frontends_that_masquerade_tell_one_client_port_apart(node: Node, scene: Scene) -> None:
    client, backend = scene.stranger, scene.backend
    scene.service(node, [backend], masquerade=True)
    scene.service(node, [backend], "other", frontends=[scene.other_vip], masquerade=True)
    first = scene.connect(node, client, scene.vip, backend)
    second = scene.connect(node, client, scene.other_vip, backend)
    assert first != second
    for frontend, known_as in ((scene.vip, first), (scene.other_vip, second)):
        assert same(node.forward(scene.data(backend, known_as)), scene.data(frontend, client))
        assert same(node.forward(scene.data(client, frontend)), scene.data(known_as, backend))


def test_one_that_masquerades_and_one_that_does_not_tell_one_client_port_apart(
    node: Node, scene: Scene
) -> None:
    client, backend = scene.stranger, scene.backend
    scene.service(node, [backend], masquerade=True)
    scene.service(node, [backend], "other", frontends=[scene.other_vip])
    masqueraded = scene.connect(node, client, scene.vip, backend)
    plain = scene.connect(node, client, scene.other_vip, backend)
    assert masqueraded.startswith(scene.at(scene.us, 0)[:-1])
    assert plain != client
    back = node.forward(scene.data(backend, plain))
    assert same(back, scene.data(scene.other_vip, client))


def test_a_direct_connection_to_another_place_of_the_backend_is_left_alone(
    node: Node, scene: Scene
) -> None:
    scene.service(node, [scene.backend])
    scene.connect(node, scene.client, scene.vip, scene.backend)
    packet = scene.opening(scene.client, scene.at(scene.backend, 9090))
    assert same(node.forward(packet), packet)
    assert node.counter("direct_flows_noticed") == 0


def test_with_no_port_left_to_change_to_the_second_connection_is_dropped_and_counted(
    node: Node, scene: Scene
) -> None:
    client, vip, backend = scene.client, scene.vip, scene.backend
    scene.service(node, [backend])
    node.settings(first=int(client.rpartition(":")[2]), ports=1)
    scene.connect(node, client, vip, backend)
    assert node.drops("ingress", scene.opening(client, backend))
    assert node.counter("dropped__source_ports_exhausted") == 1
    assert same(node.forward(scene.data(client, vip)), scene.data(client, backend))
