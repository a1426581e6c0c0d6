"""A connection's packets, there and back, byte by byte."""

from __future__ import annotations

from tests.packets.node import Node, same, tcp
from tests.packets.scene import Scene


def test_a_pod_reaches_a_backend_and_hears_the_frontend(node: Node, scene: Scene) -> None:
    scene.service(node, [scene.backend])
    out = node.forward(scene.opening(scene.client, scene.vip))
    assert same(out, scene.opening(scene.client, scene.backend))
    back = node.forward(scene.answer(scene.backend, scene.client))
    assert same(back, scene.answer(scene.vip, scene.client))


def test_every_later_packet_is_translated_the_same_way(node: Node, scene: Scene) -> None:
    scene.service(node, [scene.backend])
    scene.connect(node, scene.client, scene.vip, scene.backend)
    for payload in (b"a", b"bc", b"", b"d" * 1400):
        out = node.forward(scene.data(scene.client, scene.vip, payload))
        assert same(out, scene.data(scene.client, scene.backend, payload))
        back = node.forward(scene.data(scene.backend, scene.client, payload))
        assert same(back, scene.data(scene.vip, scene.client, payload))


def test_destinations_change_at_ingress_and_sources_at_egress(node: Node, scene: Scene) -> None:
    """In between the kernel routes an ordinary packet from client to backend."""
    scene.service(node, [scene.backend])
    routed = node.ingress(scene.opening(scene.client, scene.vip))
    assert same(routed, scene.opening(scene.client, scene.backend))
    assert same(node.egress(routed), routed)
    routed = node.ingress(scene.answer(scene.backend, scene.client))
    assert same(routed, scene.answer(scene.backend, scene.client))
    assert same(node.egress(routed), scene.answer(scene.vip, scene.client))


def test_the_last_packets_of_a_closing_connection_are_still_translated(
    node: Node, tcp_scene: Scene
) -> None:
    client, vip, backend = tcp_scene.client, tcp_scene.vip, tcp_scene.backend
    tcp_scene.service(node, [backend])
    seen = tcp_scene.connect(node, client, vip, backend)
    tcp_scene.close(node, client, vip, backend, seen)
    assert same(node.forward(tcp(client, vip, "A")), tcp(client, backend, "A"))
    assert same(node.forward(tcp(backend, client, "FA")), tcp(vip, client, "FA"))
    assert same(node.forward(tcp(client, vip, "R")), tcp(client, backend, "R"))


def test_a_refusal_is_translated_back(node: Node, tcp_scene: Scene) -> None:
    client, vip, backend = tcp_scene.client, tcp_scene.vip, tcp_scene.backend
    tcp_scene.service(node, [backend])
    node.forward(tcp(client, vip))
    assert same(node.forward(tcp(backend, client, "RA")), tcp(vip, client, "RA"))


def test_a_refusal_is_translated_back_through_a_masquerade(node: Node, tcp_scene: Scene) -> None:
    stranger, vip, backend = tcp_scene.stranger, tcp_scene.vip, tcp_scene.backend
    tcp_scene.service(node, [backend], masquerade=True)
    out = node.forward(tcp(stranger, vip))
    seen = tcp_scene.at(out.src, out.payload.sport)
    assert same(node.forward(tcp(backend, seen, "RA")), tcp(vip, stranger, "RA"))
