"""Connections before they are established, and when there are too many of them.

Of TCP the client's acknowledgement of the server's answer establishes, of UDP the first reply.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import replace

import pytest

from bpfsvc.datapath.source import load
from bpfsvc.lab import sandbox
from tests.packets.node import LINK, SIZES, UNSPEC, Node, same, tcp
from tests.packets.scene import Scene, bare

MANY = 1 << 20

ROWS = pytest.mark.parametrize(
    ("masquerade", "rows"), [(False, 2), (True, 4)], ids=["plain", "masqueraded"]
)


@pytest.fixture(autouse=True, params=["few", "many"])
def half_open(request: pytest.FixtureRequest, node: Node) -> str:
    """Whether few connections are not established, or so many that the kernel may evict them."""
    node.half_open(MANY if request.param == "many" else 0)
    return str(request.param)


@ROWS
def test_a_connection_is_new_until_both_sides_have_been_heard(
    node: Node, scene: Scene, masquerade: bool, rows: int
) -> None:
    client, vip, backend = scene.stranger, scene.vip, scene.backend
    scene.service(node, [backend], masquerade=masquerade)
    for _ in range(2):
        seen = scene.begin(node, client, vip, backend)
        assert node.states() == (rows, 0)
    comes, goes = scene.proof(client, vip, backend, seen)
    for _ in range(2):
        assert same(node.forward(comes), goes)
        assert node.states() == (0, rows)


@ROWS
@pytest.mark.parametrize("flags", ["A", "PA", "FA"])
def test_whatever_acknowledges_first_establishes(
    node: Node, tcp_scene: Scene, masquerade: bool, rows: int, flags: str
) -> None:
    """The bare acknowledgement may be lost: then it comes with the first data, or the end."""
    client, vip, backend = tcp_scene.stranger, tcp_scene.vip, tcp_scene.backend
    tcp_scene.service(node, [backend], masquerade=masquerade)
    seen = tcp_scene.begin(node, client, vip, backend)
    assert same(node.forward(tcp(client, vip, flags)), tcp(seen, backend, flags))
    assert node.states() == (0, rows)


@ROWS
def test_an_acknowledgement_of_nothing_does_not_establish(
    node: Node, tcp_scene: Scene, masquerade: bool, rows: int
) -> None:
    """Who sends from a forged address never sees the server's answer, but can pretend to."""
    client, vip, backend = tcp_scene.stranger, tcp_scene.vip, tcp_scene.backend
    tcp_scene.service(node, [backend], masquerade=masquerade)
    out = node.forward(tcp(client, vip))
    seen = tcp_scene.at(out.src, out.payload.sport)
    for flags in ("A", "PA", "FA"):
        assert same(node.forward(tcp(client, vip, flags)), tcp(seen, backend, flags))
        assert node.states() == (rows, 0)


@ROWS
def test_nothing_that_the_server_says_establishes(
    node: Node, tcp_scene: Scene, masquerade: bool, rows: int
) -> None:
    client, vip, backend = tcp_scene.stranger, tcp_scene.vip, tcp_scene.backend
    tcp_scene.service(node, [backend], masquerade=masquerade)
    seen = tcp_scene.begin(node, client, vip, backend)
    for flags in ("SA", "A", "PA", "FA"):
        assert same(node.forward(tcp(backend, seen, flags)), tcp(vip, client, flags))
        assert node.states() == (rows, 0)


def test_a_refused_connection_never_becomes_lasting(node: Node, tcp_scene: Scene) -> None:
    client, vip, backend = tcp_scene.client, tcp_scene.vip, tcp_scene.backend
    tcp_scene.service(node, [backend])
    node.forward(tcp(client, vip))
    assert same(node.forward(tcp(backend, client, "RA")), tcp(vip, client, "RA"))
    assert node.states()[1] == 0


@pytest.mark.parametrize("by", ["client", "backend"])
def test_a_connection_that_is_broken_off_half_open_never_becomes_lasting(
    node: Node, tcp_scene: Scene, by: str
) -> None:
    client, vip, backend = tcp_scene.client, tcp_scene.vip, tcp_scene.backend
    tcp_scene.service(node, [backend])
    tcp_scene.begin(node, client, vip, backend)
    if by == "client":
        assert same(node.forward(tcp(client, vip, "R")), tcp(client, backend, "R"))
    else:
        assert same(node.forward(tcp(backend, client, "R")), tcp(vip, client, "R"))
    assert node.states()[1] == 0


@pytest.fixture(scope="module", params=[4, 5], ids=["room for 4", "room for 5"])
def small(request: pytest.FixtureRequest) -> Iterator[Node]:
    """A node with room for two connections, or one masqueraded; or for half a one more."""
    sandbox.require()
    sizes = replace(SIZES, max_connections=request.param, max_new_connections=512)
    node = Node(sandbox.BPF_ROOT / f"small{request.param}", load(sizes))
    yield node
    node.pinned.close()


@pytest.fixture
def small_node(small: Node) -> Node:
    small.reset()
    return small


def flood(node: Node, scene: Scene, count: int, *, answered: bool = False) -> None:
    """Send first packets of as many connections, which the backend answers or not."""
    frame = bytearray(bytes(LINK / scene.opening(scene.at(scene.client, 1), scene.vip)))
    answer = bytearray(bytes(LINK / scene.answer(scene.backend, scene.at(scene.client, 1))))
    at = 14 + (20 if scene.family == 4 else 40)
    for number in range(count):
        struct.pack_into("!H", frame, at, 1024 + number)
        assert node.run_frame("ingress", bytes(frame))[0] == UNSPEC
        if answered:
            struct.pack_into("!H", answer, at + 2, 1024 + number)
            verdict, back = node.run_frame("egress", bytes(answer))
            assert (verdict, back != answer) == (UNSPEC, True)


def works(node: Node, scene: Scene, client: str, seen: str) -> bool:
    """Whether an established connection is translated both ways."""
    out = node.forward(scene.data(client, scene.vip))
    back = node.forward(scene.data(scene.backend, seen))
    return same(out, scene.data(seen, scene.backend)) and same(back, scene.data(scene.vip, client))


def test_a_flood_of_first_packets_does_not_touch_what_is_established(
    small_node: Node, scene: Scene
) -> None:
    scene.service(small_node, [scene.backend], masquerade=True)
    seen = scene.connect(small_node, scene.stranger, scene.vip, scene.backend)
    flood(small_node, scene, 3000)
    assert small_node.count("new_connections") <= 512
    assert small_node.count("connections") == 4
    assert works(small_node, scene, scene.stranger, seen)


def test_a_flood_that_is_answered_but_not_acknowledged_leaves_nothing_lasting(
    small_node: Node, tcp_scene: Scene
) -> None:
    tcp_scene.service(small_node, [tcp_scene.backend])
    flood(small_node, tcp_scene, 3000, answered=True)
    assert small_node.count("connections") == 0
    assert small_node.counter("dropped__connections_full") == 0
    seen = tcp_scene.connect(small_node, tcp_scene.stranger, tcp_scene.vip, tcp_scene.backend)
    assert works(small_node, tcp_scene, tcp_scene.stranger, seen)


def test_a_flood_that_is_answered_does_not_touch_what_is_established(
    small_node: Node, tcp_scene: Scene
) -> None:
    tcp_scene.service(small_node, [tcp_scene.backend], masquerade=True)
    seen = tcp_scene.connect(small_node, tcp_scene.stranger, tcp_scene.vip, tcp_scene.backend)
    flood(small_node, tcp_scene, 3000, answered=True)
    assert small_node.count("new_connections") <= 512
    assert small_node.count("connections") == 4
    assert works(small_node, tcp_scene, tcp_scene.stranger, seen)


def filled(node: Node, scene: Scene) -> tuple[str, str]:
    """Establish as many connections as fit; begin another; give one of the first, and the other."""
    clients = [scene.at(scene.client, 5000 + number) for number in range(3)]
    scene.service(node, [scene.backend])
    for client in clients[:2]:
        scene.connect(node, client, scene.vip, scene.backend)
    assert scene.begin(node, clients[2], scene.vip, scene.backend) == clients[2]
    return clients[0], clients[2]


def refuses(node: Node, scene: Scene, client: str) -> bool:
    """Whether the packet that would establish is dropped where it comes in."""
    comes, _ = scene.proof(client, scene.vip, scene.backend, client)
    return node.drops("ingress" if scene.protocol == "TCP" else "egress", comes)


def test_without_room_what_would_establish_is_dropped_and_counted_and_others_go_on(
    small_node: Node, scene: Scene
) -> None:
    first, third = filled(small_node, scene)
    assert refuses(small_node, scene, third)
    assert small_node.counter("dropped__connections_full") == 1
    assert works(small_node, scene, first, first)


def test_without_room_what_is_repeated_is_dropped_too(small_node: Node, scene: Scene) -> None:
    """Otherwise one side believes it is connected, and nothing translates what it says next."""
    _, third = filled(small_node, scene)
    for times in (1, 2, 3):
        assert refuses(small_node, scene, third)
        assert small_node.counter("dropped__connections_full") == times


def test_without_room_data_is_dropped_as_the_acknowledgement_was(
    small_node: Node, tcp_scene: Scene
) -> None:
    """The client believes that it is connected, and must hear nothing but silence until it is."""
    _, third = filled(small_node, tcp_scene)
    assert refuses(small_node, tcp_scene, third)
    for flags in ("PA", "FA"):
        assert small_node.drops("ingress", tcp(third, tcp_scene.vip, flags))
    answer = tcp(tcp_scene.backend, third, "SA")
    assert same(small_node.forward(answer), tcp(tcp_scene.vip, third, "SA"))


def test_when_there_is_room_again_what_is_repeated_establishes_the_connection(
    small_node: Node, scene: Scene
) -> None:
    first, third = filled(small_node, scene)
    assert refuses(small_node, scene, third)
    established = small_node.flow("ingress", scene.opening(first, scene.vip))
    assert small_node.collect(established, force=True) == 1
    comes, goes = scene.proof(third, scene.vip, scene.backend, third)
    assert same(small_node.forward(comes), goes)
    assert small_node.states() == (0, 4)
    assert works(small_node, scene, third, third)


def test_a_masqueraded_connection_that_fits_by_half_is_dropped_and_later_established(
    small_node: Node, scene: Scene
) -> None:
    stranger, vip, backend = scene.stranger, scene.vip, scene.backend
    scene.service(small_node, [backend], masquerade=True)
    scene.service(small_node, [backend], "plain", frontends=[scene.other_vip])
    scene.connect(small_node, scene.client, scene.other_vip, backend)
    seen = scene.begin(small_node, stranger, vip, backend)
    assert bare(seen) != bare(stranger)
    comes, goes = scene.proof(stranger, vip, backend, seen)
    for times in (1, 2):
        assert small_node.drops("egress", small_node.ingress(comes))
        assert small_node.counter("dropped__connections_full") == times
        assert small_node.states() == (2, 4)
    established = scene.opening(scene.client, scene.other_vip)
    assert small_node.collect(small_node.flow("ingress", established), force=True) == 1
    assert same(small_node.forward(comes), goes)
    assert small_node.states() == (0, 4)
    assert works(small_node, scene, stranger, seen)


def test_an_answer_to_a_connection_whose_first_entry_was_evicted_is_dropped_and_counted(
    node: Node, tcp_scene: Scene
) -> None:
    """The client would believe it is connected; so it sends its SYN again."""
    client, vip, backend = tcp_scene.client, tcp_scene.vip, tcp_scene.backend
    tcp_scene.service(node, [backend])
    node.half_open(MANY)
    node.forward(tcp(client, vip))
    node.pinned.map("new_connections").delete(node.flow("ingress", tcp(client, vip)))
    assert node.drops("egress", tcp(backend, client, "SA"))
    assert node.counter("dropped__evicted") == 1
    tcp_scene.connect(node, client, vip, backend)


@ROWS
def test_few_that_are_not_established_are_held_where_nothing_is_evicted(
    node: Node, scene: Scene, half_open: str, masquerade: bool, rows: int
) -> None:
    client, vip, backend = scene.stranger, scene.vip, scene.backend
    scene.service(node, [backend], masquerade=masquerade)
    seen = scene.begin(node, client, vip, backend)
    assert node.count("connections" if half_open == "few" else "new_connections") == rows
    comes, goes = scene.proof(client, vip, backend, seen)
    assert same(node.forward(comes), goes)
    assert (node.count("connections"), node.count("new_connections")) == (rows, 0)


@ROWS
@pytest.mark.parametrize("ending", ["established", "collected", "reused"])
def test_what_is_held_is_counted_until_it_is_established_or_removed(
    node: Node, tcp_scene: Scene, masquerade: bool, rows: int, ending: str
) -> None:
    client, vip, backend = tcp_scene.stranger, tcp_scene.vip, tcp_scene.backend
    tcp_scene.service(node, [backend], masquerade=masquerade)
    node.half_open(0)
    seen = tcp_scene.begin(node, client, vip, backend)
    assert node.held() == rows // 2
    if ending == "established":
        node.forward(tcp_scene.proof(client, vip, backend, seen)[0])
    elif ending == "collected":
        flows = [node.flow("ingress", tcp(client, vip)), node.flow("egress", tcp(client, backend))]
        assert node.collect(*flows, force=True) == rows // 2
    else:
        node.forward(tcp(backend, seen, "RA"))
        tcp_scene.connect(node, client, vip, backend)
    assert node.held() == 0


def test_beyond_a_share_of_the_table_the_kernel_may_evict_them(node: Node, scene: Scene) -> None:
    scene.service(node, [scene.backend])
    node.half_open(0)
    flood(node, scene, 200)
    assert node.held() == SIZES.max_connections // 32
    assert node.count("connections") == 2 * node.held()
    assert node.count("new_connections") == 2 * (200 - node.held())


@pytest.fixture(scope="module")
def narrow() -> Iterator[Node]:
    """A node with room for 32 connections, two of which may be half-open."""
    sandbox.require()
    node = Node(sandbox.BPF_ROOT / "narrow", load(replace(SIZES, max_connections=64)))
    yield node
    node.pinned.close()


def test_when_the_table_is_full_a_first_packet_is_dropped_and_counted_and_others_go_on(
    narrow: Node, scene: Scene
) -> None:
    narrow.reset()
    scene.service(narrow, [scene.backend])
    clients = [scene.at(scene.client, 5000 + number) for number in range(33)]
    for client in clients[:32]:
        scene.connect(narrow, client, scene.vip, scene.backend)
    assert narrow.drops("ingress", scene.opening(clients[32], scene.vip))
    assert narrow.counter("dropped__connections_full") == 1
    assert narrow.held() == 0
    assert works(narrow, scene, clients[0], clients[0])
