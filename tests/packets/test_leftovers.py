"""What a closed connection left behind must not touch the next use of its ports."""

from __future__ import annotations

import pytest

from tests.packets.endings import ENDINGS, end
from tests.packets.node import Node, same, tcp
from tests.packets.scene import Scene, bare

LINGERED = 3
"""Seconds after which the last packets of a closed connection are no more expected."""


def leave(node: Node, scene: Scene, ending: str, client: str, *, masquerade: bool = False) -> None:
    """Let a connection to a backend behind two frontends, through the first of them, end."""
    scene.service(node, [scene.backend], masquerade=masquerade)
    scene.service(node, [scene.backend], "other", frontends=[scene.other_vip])
    end(node, scene, ending, client, scene.connect(node, client, scene.vip, scene.backend))


def untouched_both_ways(node: Node, client: str, backend: str) -> bool:
    """Go through a whole direct connection."""
    return all(
        same(node.forward(packet), packet)
        for packet in (
            tcp(client, backend),
            tcp(backend, client, "SA"),
            tcp(client, backend, "A"),
            tcp(client, backend, "PA", b"question"),
            tcp(backend, client, "PA", b"reply"),
            tcp(backend, client, "FA"),
            tcp(client, backend, "FA"),
        )
    )


@ENDINGS
@pytest.mark.parametrize("masquerade", [False, True], ids=["plain", "masqueraded"])
def test_a_direct_connection_after_a_closed_one_is_untouched(
    node: Node, tcp_scene: Scene, ending: str, masquerade: bool
) -> None:
    client, vip, backend = tcp_scene.stranger, tcp_scene.vip, tcp_scene.backend
    tcp_scene.service(node, [backend], masquerade=masquerade)
    seen = tcp_scene.connect(node, client, vip, backend)
    end(node, tcp_scene, ending, client, seen)
    assert untouched_both_ways(node, client, backend)
    assert node.counter("source_ports_changed") == 0


def test_a_direct_connection_after_a_refused_one_is_untouched(node: Node, tcp_scene: Scene) -> None:
    client, vip, backend = tcp_scene.client, tcp_scene.vip, tcp_scene.backend
    tcp_scene.service(node, [backend])
    node.forward(tcp(client, vip))
    node.forward(tcp(backend, client, "RA"))
    assert untouched_both_ways(node, client, backend)


@ENDINGS
def test_a_direct_connection_to_a_backend_that_serves_no_more_is_untouched(
    node: Node, tcp_scene: Scene, ending: str
) -> None:
    client, vip, backend = tcp_scene.client, tcp_scene.vip, tcp_scene.backend
    tcp_scene.service(node, [backend])
    seen = tcp_scene.connect(node, client, vip, backend)
    end(node, tcp_scene, ending, client, seen)
    tcp_scene.service(node, [tcp_scene.other_backend])
    assert untouched_both_ways(node, client, backend)


def test_a_direct_connection_beside_an_open_one_to_a_backend_that_serves_no_more_is_told_apart(
    node: Node, scene: Scene
) -> None:
    """Established connections stay with a terminating backend; a collision is as real as ever."""
    client, vip, backend = scene.client, scene.vip, scene.backend
    scene.service(node, [backend])
    scene.connect(node, client, vip, backend)
    scene.service(node, [scene.other_backend])
    out = node.forward(scene.opening(client, backend))
    back = node.forward(scene.answer(backend, scene.at(client, out.payload.sport)))
    assert same(back, scene.answer(backend, client))


@ENDINGS
def test_another_frontend_after_a_closed_connection_keeps_the_client_port(
    node: Node, tcp_scene: Scene, ending: str
) -> None:
    client, backend = tcp_scene.client, tcp_scene.backend
    leave(node, tcp_scene, ending, client)
    node.age(LINGERED)
    assert tcp_scene.connect(node, client, tcp_scene.other_vip, backend) == client


@ENDINGS
def test_another_frontend_after_a_masqueraded_connection_is_not_masqueraded(
    node: Node, tcp_scene: Scene, ending: str
) -> None:
    client, backend = tcp_scene.stranger, tcp_scene.backend
    leave(node, tcp_scene, ending, client, masquerade=True)
    node.age(LINGERED)
    assert tcp_scene.connect(node, client, tcp_scene.other_vip, backend) == client


@ENDINGS
def test_another_frontend_right_after_a_closed_connection_leaves_its_last_packets_alone(
    node: Node, tcp_scene: Scene, ending: str
) -> None:
    """The last acknowledgement may still be on its way: both would be one 5-tuple behind us."""
    client, vip, backend = tcp_scene.client, tcp_scene.vip, tcp_scene.backend
    leave(node, tcp_scene, ending, client)
    other = tcp_scene.connect(node, client, tcp_scene.other_vip, backend)
    assert (bare(other), other != client) == (bare(client), True)
    for flags in ("A", "R"):
        assert same(node.forward(tcp(client, vip, flags)), tcp(client, backend, flags))
        assert same(node.forward(tcp(backend, client, flags)), tcp(vip, client, flags))
    out = node.forward(tcp(client, tcp_scene.other_vip, "PA"))
    assert same(out, tcp(other, backend, "PA"))
