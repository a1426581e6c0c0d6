"""A client port that is used again through the same frontend."""

from __future__ import annotations

import pytest

from tests.packets.endings import ENDINGS, end
from tests.packets.node import Node, same, tcp
from tests.packets.scene import Scene

KINDS = pytest.mark.parametrize("masquerade", [False, True], ids=["plain", "masqueraded"])


def moved(node: Node, scene: Scene, masquerade: bool) -> None:
    """Let the Service's only backend be another one."""
    scene.service(node, [scene.other_backend], masquerade=masquerade)


@KINDS
@ENDINGS
def test_a_syn_on_a_closed_connection_makes_a_new_choice(
    node: Node, tcp_scene: Scene, masquerade: bool, ending: str
) -> None:
    client, vip, backend = tcp_scene.stranger, tcp_scene.vip, tcp_scene.backend
    tcp_scene.service(node, [backend], masquerade=masquerade)
    seen = tcp_scene.connect(node, client, vip, backend)
    moved(node, tcp_scene, masquerade)
    assert same(node.forward(tcp(client, vip, "PA")), tcp(seen, backend, "PA"))
    end(node, tcp_scene, ending, client, seen)
    assert tcp_scene.connect(node, client, vip, tcp_scene.other_backend)
    assert node.counter("connections_reopened") >= 1
    out = node.forward(tcp(client, vip, "PA", b"hi"))
    assert out.dst == tcp(client, tcp_scene.other_backend).dst


@KINDS
def test_a_new_choice_of_the_same_backend_is_a_whole_connection(
    node: Node, tcp_scene: Scene, masquerade: bool
) -> None:
    client, vip, backend = tcp_scene.stranger, tcp_scene.vip, tcp_scene.backend
    tcp_scene.service(node, [backend], masquerade=masquerade)
    for _ in range(4):
        seen = tcp_scene.connect(node, client, vip, backend)
        tcp_scene.close(node, client, vip, backend, seen)
    assert node.counter("connections_reopened") == 3
    assert node.counter("source_ports_changed") == 0
    assert node.count("connections") == (4 if masquerade else 2)


def test_a_syn_after_a_refusal_makes_a_new_choice(node: Node, tcp_scene: Scene) -> None:
    client, vip, backend = tcp_scene.client, tcp_scene.vip, tcp_scene.backend
    tcp_scene.service(node, [backend])
    node.forward(tcp(client, vip))
    node.forward(tcp(backend, client, "RA"))
    moved(node, tcp_scene, masquerade=False)
    assert same(node.forward(tcp(client, vip)), tcp(client, tcp_scene.other_backend))


@KINDS
def test_a_retransmitted_syn_keeps_its_backend(
    node: Node, tcp_scene: Scene, masquerade: bool
) -> None:
    client, vip, backend = tcp_scene.stranger, tcp_scene.vip, tcp_scene.backend
    tcp_scene.service(node, [backend], masquerade=masquerade)
    first = node.forward(tcp(client, vip))
    moved(node, tcp_scene, masquerade)
    assert same(node.forward(tcp(client, vip)), first)


@KINDS
@pytest.mark.parametrize("half_closed", [False, True], ids=["open", "half closed"])
def test_a_syn_on_a_connection_that_is_not_closed_keeps_its_backend(
    node: Node, tcp_scene: Scene, masquerade: bool, half_closed: bool
) -> None:
    client, vip, backend = tcp_scene.stranger, tcp_scene.vip, tcp_scene.backend
    tcp_scene.service(node, [backend], masquerade=masquerade)
    seen = tcp_scene.connect(node, client, vip, backend)
    if half_closed:
        node.forward(tcp(client, vip, "FA"))
    moved(node, tcp_scene, masquerade)
    assert same(node.forward(tcp(client, vip)), tcp(seen, backend))


def test_a_challenge_to_the_syn_comes_back_as_from_the_frontend(
    node: Node, tcp_scene: Scene
) -> None:
    """RFC 5961: the backend answers a SYN on an open connection with an ACK."""
    client, vip, backend = tcp_scene.client, tcp_scene.vip, tcp_scene.backend
    tcp_scene.service(node, [backend])
    tcp_scene.connect(node, client, vip, backend)
    node.forward(tcp(client, vip))
    assert same(node.forward(tcp(backend, client, "A")), tcp(vip, client, "A"))
