"""Connections before their first reply, and when there are too many of them."""

from __future__ import annotations

import struct
from collections.abc import Iterator

import pytest

from bpfsvc.datapath.source import Sizes
from bpfsvc.lab import sandbox
from tests.packets.node import LINK, UNSPEC, Node, same, tcp
from tests.packets.scene import Scene, bare


@pytest.mark.parametrize(("masquerade", "rows"), [(False, 2), (True, 4)])
def test_a_connection_is_new_until_its_first_reply(
    node: Node, scene: Scene, masquerade: bool, rows: int
) -> None:
    scene.service(node, [scene.backend], masquerade=masquerade)
    out = node.forward(scene.opening(scene.stranger, scene.vip))
    node.forward(scene.opening(scene.stranger, scene.vip))
    assert (node.count("new_connections"), node.count("connections")) == (rows, 0)
    node.forward(scene.answer(scene.backend, scene.at(out.src, out.payload.sport)))
    assert (node.count("new_connections"), node.count("connections")) == (0, rows)


def test_a_refused_connection_never_becomes_lasting(node: Node, tcp_scene: Scene) -> None:
    client, vip, backend = tcp_scene.client, tcp_scene.vip, tcp_scene.backend
    tcp_scene.service(node, [backend])
    node.forward(tcp(client, vip))
    assert same(node.forward(tcp(backend, client, "RA")), tcp(vip, client, "RA"))
    assert node.count("connections") == 0


@pytest.fixture(scope="module", params=[4, 5], ids=["room for 4", "room for 5"])
def small(request: pytest.FixtureRequest) -> Iterator[Node]:
    """A node with room for two connections, or one masqueraded; or for half a one more."""
    sandbox.require()
    sizes = Sizes(max_connections=request.param, max_new_connections=512)
    node = Node(sandbox.BPF_ROOT / f"small{request.param}", sizes)
    yield node
    node.pinned.close()


@pytest.fixture
def small_node(small: Node) -> Node:
    small.reset()
    return small


def flood(node: Node, scene: Scene, count: int) -> None:
    """Send first packets of as many connections, none of which is answered."""
    frame = bytearray(bytes(LINK / scene.opening(scene.at(scene.client, 1), scene.vip)))
    at = 14 + (20 if scene.family == 4 else 40)
    for number in range(count):
        struct.pack_into("!H", frame, at, 1024 + number)
        assert node.run_frame("ingress", bytes(frame))[0] == UNSPEC


def test_a_flood_of_first_packets_does_not_touch_what_is_established(
    small_node: Node, scene: Scene
) -> None:
    scene.service(small_node, [scene.backend], masquerade=True)
    seen = scene.connect(small_node, scene.stranger, scene.vip, scene.backend)
    flood(small_node, scene, 3000)
    assert small_node.count("new_connections") <= 512
    assert small_node.count("connections") == 4
    out = small_node.forward(scene.data(scene.stranger, scene.vip))
    assert same(out, scene.data(seen, scene.backend))
    back = small_node.forward(scene.data(scene.backend, seen))
    assert same(back, scene.data(scene.vip, scene.stranger))


def filled(node: Node, scene: Scene) -> tuple[str, str]:
    """Establish as many connections as fit; open another; give one of the first, and the other."""
    clients = [scene.at(scene.client, 5000 + number) for number in range(3)]
    scene.service(node, [scene.backend])
    for client in clients[:2]:
        scene.connect(node, client, scene.vip, scene.backend)
    node.forward(scene.opening(clients[2], scene.vip))
    return clients[0], clients[2]


def test_without_room_the_first_reply_is_dropped_and_counted_and_others_go_on(
    small_node: Node, scene: Scene
) -> None:
    first, third = filled(small_node, scene)
    assert small_node.drops("egress", scene.answer(scene.backend, third))
    assert small_node.counter("dropped__connections_full") == 1
    out = small_node.forward(scene.data(first, scene.vip))
    assert same(out, scene.data(first, scene.backend))
    back = small_node.forward(scene.data(scene.backend, first))
    assert same(back, scene.data(scene.vip, first))


def test_without_room_the_repeated_reply_is_dropped_too(small_node: Node, scene: Scene) -> None:
    """Otherwise the client believes it is connected, and nothing translates what it says next."""
    _, third = filled(small_node, scene)
    for times in (1, 2, 3):
        assert small_node.drops("egress", scene.answer(scene.backend, third))
        assert small_node.counter("dropped__connections_full") == times


def test_when_there_is_room_again_a_repeated_reply_establishes_the_connection(
    small_node: Node, tcp_scene: Scene
) -> None:
    vip, backend = tcp_scene.vip, tcp_scene.backend
    first, third = filled(small_node, tcp_scene)
    assert small_node.drops("egress", tcp(backend, third, "SA"))
    assert small_node.collect(small_node.flow("ingress", tcp(first, vip)), force=True) == 1
    assert same(small_node.forward(tcp(backend, third, "SA")), tcp(vip, third, "SA"))
    out = small_node.forward(tcp(third, vip, "PA", b"hello"))
    assert same(out, tcp(third, backend, "PA", b"hello"))


def test_a_masqueraded_connection_that_fits_by_half_is_dropped_and_later_established(
    small_node: Node, tcp_scene: Scene
) -> None:
    stranger, vip, backend = tcp_scene.stranger, tcp_scene.vip, tcp_scene.backend
    tcp_scene.service(small_node, [backend], masquerade=True)
    tcp_scene.service(small_node, [backend], "plain", frontends=[tcp_scene.other_vip])
    tcp_scene.connect(small_node, tcp_scene.client, tcp_scene.other_vip, backend)
    out = small_node.forward(tcp(stranger, vip))
    seen = tcp_scene.at(out.src, out.payload.sport)
    assert out.src != bare(stranger)
    routed = small_node.ingress(tcp(backend, seen, "SA"))
    assert small_node.drops("egress", routed)
    established = tcp(tcp_scene.client, tcp_scene.other_vip)
    assert small_node.collect(small_node.flow("ingress", established), force=True) == 1
    assert same(small_node.forward(tcp(backend, seen, "SA")), tcp(vip, stranger, "SA"))
    out = small_node.forward(tcp(stranger, vip, "PA", b"hello"))
    assert same(out, tcp(seen, backend, "PA", b"hello"))
