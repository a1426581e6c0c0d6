"""Programs jump to others; if one were missing, nothing that it might translate may pass."""

from __future__ import annotations

import struct
import sys
from collections.abc import Callable, Iterator

import pytest
from scapy.layers.inet import ICMP
from scapy.layers.inet6 import IPv6ExtHdrHopByHop
from scapy.packet import Packet

from bpfsvc.datapath.compiler import STEPS
from tests.packets.errors import error
from tests.packets.headers import with_headers
from tests.packets.node import SHOT, UNSPEC, Node, ip
from tests.packets.refusals import refused
from tests.packets.scene import SCTP_SCENES, TCP_SCENES, Scene, bare

TCP4, TCP6 = TCP_SCENES
SCTP4 = SCTP_SCENES[0]


@pytest.fixture
def without(node: Node) -> Iterator[Callable[[str], None]]:
    """Take steps away until the end of the test."""
    found = node.pinned.map("steps")
    taken: list[str] = []

    def take(name: str) -> None:
        assert found.delete(struct.pack("=I", STEPS.index(name)))
        taken.append(name)

    yield take
    for name in taken:
        program = node.pinned.program(name).to_bytes(4, sys.byteorder)
        found.update(struct.pack("=I", STEPS.index(name)), program)


def masqueraded(node: Node, scene: Scene) -> str:
    scene.service(node, [scene.backend], masquerade=True)
    return scene.connect(node, scene.stranger, scene.vip, scene.backend)


def first(node: Node, scene: Scene) -> tuple[str, Packet]:
    scene.service(node, [scene.backend])
    return "ingress", scene.opening(scene.client, scene.vip)


def careful(node: Node, scene: Scene) -> tuple[str, Packet]:
    masqueraded(node, scene)
    node.age(2)
    return "ingress", scene.data(scene.stranger, scene.vip)


def shortcut(node: Node, scene: Scene) -> tuple[str, Packet]:
    """Make a packet of a fast connection need care, after which it would be fast again."""
    prepared = careful(node, scene)
    node.settings(fast_path=1)
    found = node.pinned.map("connections")
    record = node.pinned.layout.maps["connections"].value
    for key, value in list(found.items()):
        found.update(key, record.pack({**record.unpack(value), "shortcut": node.interface}))
    return prepared


def masquerade(node: Node, scene: Scene) -> tuple[str, Packet]:
    scene.service(node, [scene.backend], masquerade=True)
    return "egress", node.ingress(scene.opening(scene.stranger, scene.vip))


def icmp(node: Node, scene: Scene) -> tuple[str, Packet]:
    seen = masqueraded(node, scene)
    return "ingress", error(scene.router, scene.us, scene.data(seen, scene.backend))


def unusual(node: Node, scene: Scene) -> tuple[str, Packet]:
    masqueraded(node, scene)
    data = scene.data(scene.stranger, scene.vip)
    return "ingress", with_headers(data, IPv6ExtHdrHopByHop())


def rewrite(node: Node, scene: Scene) -> tuple[str, Packet]:
    masqueraded(node, scene)
    return "ingress", scene.data(scene.stranger, scene.vip)


def reject(node: Node, scene: Scene) -> tuple[str, Packet]:
    scene.service(node, [])
    return "ingress", scene.opening(scene.client, scene.vip)


NEEDS = {
    "step_first": (first, TCP4),
    "step_open": (first, TCP4),
    "step_careful": (careful, TCP4),
    "step_icmp": (icmp, TCP4),
    "step_unusual": (unusual, TCP6),
    "step_rewrite": (rewrite, SCTP4),
    "step_reject": (reject, TCP4),
    "step_masquerade": (masquerade, TCP4),
    "step_shortcut": (shortcut, TCP4),
}


@pytest.mark.parametrize("name", STEPS)
def test_a_packet_that_needs_a_missing_step_is_dropped_and_counted(
    node: Node, without: Callable[[str], None], name: str
) -> None:
    prepare, scene = NEEDS[name]
    hook, packet = prepare(node, scene)
    without(name)
    assert node.run(hook, packet)[0] == SHOT
    assert node.counter("dropped__step_missing") == 1


def test_a_packet_of_an_established_connection_needs_none(
    node: Node, without: Callable[[str], None]
) -> None:
    seen = masqueraded(node, TCP4)
    for name in STEPS:
        without(name)
    node.forward(TCP4.data(TCP4.stranger, TCP4.vip))
    node.forward(TCP4.data(TCP4.backend, seen))
    assert node.counter("dropped__step_missing") == 0


def test_a_ping_to_another_node_needs_but_the_first(
    node: Node, without: Callable[[str], None]
) -> None:
    for name in STEPS[1:]:
        without(name)
    ping = ip(bare(TCP4.client), TCP4.router) / ICMP()
    assert node.run("ingress", ping)[0] == UNSPEC


def test_they_are_all_back_for_other_tests(node: Node) -> None:
    assert refused(node, reject(node, TCP4)[1])
    found = node.pinned.map("steps")
    assert all(found.lookup(struct.pack("=I", index)) for index in range(len(STEPS)))
