"""A packet that goes where no row points is let pass at once; every other is looked at."""

from __future__ import annotations

import random
import socket
import struct
from collections.abc import Iterator

import pytest
from scapy.layers.inet import ICMP

from bpfsvc.address import pack, unpack
from bpfsvc.datapath.compiler import STEPS
from bpfsvc.datapath.destinations import place_of
from tests.packets.node import SHOT, UNSPEC, Node, ip, udp
from tests.packets.scene import UDP_SCENES, Scene, bare

FIRST = struct.pack("=I", STEPS.index("step_first"))
STRANGE = {4: "203.0.113.7", 6: "fd99::7"}


@pytest.fixture
def stepless(node: Node) -> Iterator[Node]:
    """A node that drops whatever it looks at: without that step, nothing unknown may pass."""
    steps = node.pinned.map("steps")
    steps.delete(FIRST)
    yield node
    steps.update(FIRST, struct.pack("=I", node.pinned.program("step_first")))


def looked_at(node: Node, address: str, port: int = 53) -> bool:
    """Whether a first datagram to an address goes on to be looked at."""
    client = "192.0.2.1:4000" if ":" not in address else "[fd98::1]:4000"
    place = f"{address}:{port}" if ":" not in address else f"[{address}]:{port}"
    verdict, _ = node.run("ingress", udp(client, place))
    assert verdict in (SHOT, UNSPEC)
    return verdict == SHOT


def test_until_all_rows_are_known_every_destination_is_looked_at(
    stepless: Node, udp_scene: Scene
) -> None:
    assert looked_at(stepless, STRANGE[udp_scene.family])


def test_then_only_those_that_rows_name(stepless: Node, udp_scene: Scene) -> None:
    """Frontends, backends and the node's own addresses; all else passes at once."""
    stepless.service_networks()
    udp_scene.service(stepless, [udp_scene.backend])
    for place in (udp_scene.vip, udp_scene.us):
        assert looked_at(stepless, bare(place))
    for place in (STRANGE[udp_scene.family], udp_scene.other_vip, udp_scene.other_backend):
        assert not looked_at(stepless, bare(place))


def test_of_a_backend_only_its_own_port_is_looked_at(stepless: Node, udp_scene: Scene) -> None:
    stepless.service_networks()
    udp_scene.service(stepless, [udp_scene.backend])
    backend, port = bare(udp_scene.backend), int(udp_scene.backend.rpartition(":")[2])
    assert looked_at(stepless, backend, port)
    for other in (port - 1, port + 1, socket.htons(port)):
        assert not looked_at(stepless, backend, other)


@pytest.mark.parametrize("family", [4, 6])
def test_networks_of_services_are_looked_at_by_the_one_around_them(
    stepless: Node, family: int
) -> None:
    near, far = {
        4: (["10.96.0.0/16", "10.98.0.0/16"], ["10.99.255.255", "10.100.0.1", "11.96.0.1"]),
        6: (["fd96::/112", "fd96::3:0/112"], ["fd96::3:ffff", "fd96::4:0", "fd97::1"]),
    }[family]
    stepless.service_networks(*near)
    assert [looked_at(stepless, address) for address in far] == [True, False, False]


def test_networks_of_one_family_say_nothing_of_the_other(stepless: Node) -> None:
    stepless.service_networks("10.96.0.0/16")
    assert not looked_at(stepless, "fd96::1")
    assert looked_at(stepless, "10.96.0.1")


def test_the_programs_find_the_bit_that_the_agent_sets(stepless: Node) -> None:
    """For any address of either family, and any port of a backend."""
    chance = random.Random(20)
    stepless.service_networks()
    stepless.destinations.refill()
    places = {place_of(pack(own)) for own in ("192.168.50.11", "fd50::11")}
    backends: set[int] = set()
    for _ in range(300):
        last = chance.randbytes(4) if chance.random() < 0.5 else b""
        packed = pack("0.0.0.0")[:12] + last if last else b"\xfd" + chance.randbytes(15)
        if last and (last[0] in (0, 127) or last[0] >= 224):
            continue
        address, port = unpack(packed), chance.randrange(1, 1 << 16)
        key = packed + struct.pack("!HBx", port, socket.IPPROTO_UDP)
        shared = place_of(packed) in places
        assert looked_at(stepless, address, port) is (shared or place_of(key) in backends)
        stepless.destinations.add_backends([key])
        assert looked_at(stepless, address, port)
        backends.add(place_of(key))
        stepless.destinations.add([packed])
        assert looked_at(stepless, address)
        places.add(place_of(packed))


def test_bits_of_rows_that_are_gone_are_cleared_when_all_are_gone_through(stepless: Node) -> None:
    scene = UDP_SCENES[0]
    stepless.service_networks()
    scene.service(stepless, [scene.backend])
    frontends = stepless.pinned.map("frontends")
    frontends.delete_many([key for key, _ in frontends.items()])
    assert looked_at(stepless, bare(scene.vip))
    stepless.tables.know_destinations()
    assert not looked_at(stepless, bare(scene.vip))
    assert looked_at(stepless, scene.us)


def test_echo_requests_are_no_exception(stepless: Node) -> None:
    stepless.service_networks("10.96.0.0/16")
    verdicts = [
        stepless.run("ingress", ip("192.0.2.1", to) / ICMP(type=8))[0]
        for to in ("203.0.113.7", "10.96.3.4")
    ]
    assert verdicts == [UNSPEC, SHOT]


def test_a_connection_keeps_its_translation_wherever_it_goes(node: Node, scene: Scene) -> None:
    """Bits are asked of first packets only."""
    scene.service(node, [scene.backend])
    scene.connect(node, scene.client, scene.vip, scene.backend)
    found = node.pinned.map("destinations")
    node.service_networks()
    found.update(bytes(4), (found.lookup(bytes(4)) or b"")[:64] + bytes(found.value_size - 64))
    came = node.forward(scene.data(scene.client, scene.vip))
    assert bytes(came) == bytes(scene.data(scene.client, scene.backend))


def test_a_build_that_takes_over_rows_knows_their_destinations(node: Node) -> None:
    """Going through the rows finds those that somebody else has written."""
    scene = UDP_SCENES[0]
    scene.service(node, [scene.backend])
    found = node.pinned.map("destinations")
    found.update(bytes(4), bytes(found.value_size))
    node.tables.know_destinations()
    node.service_networks()
    came = node.forward(scene.opening(scene.client, scene.vip))
    assert bytes(came) == bytes(scene.opening(scene.client, scene.backend))
