"""What XDP on an uplink leaves to the stack for its form alone: it stays as it came."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from scapy.layers.inet import IPOption_NOP
from scapy.layers.inet6 import IPv6ExtHdrDestOpt
from scapy.layers.l2 import Dot1Q, Ether
from scapy.packet import Packet, Raw

from tests.packets.headers import with_headers
from tests.packets.node import sctp
from tests.packets.scene import Scene
from tests.packets.uplink import (
    CLIENT,
    ROUTER,
    SERVED,
    Uplink,
    connected,
)


@pytest.fixture(params=SERVED, ids=str)
def scene(request: pytest.FixtureRequest) -> Scene:
    """TCP and UDP over both families."""
    made: Scene = request.param
    return made


def of_no_service(scene: Scene) -> Packet:
    return scene.data(scene.stranger, scene.other_vip)


def last_hop(scene: Scene) -> Packet:
    packet = scene.data(scene.stranger, scene.vip)
    setattr(packet, "ttl" if scene.family == 4 else "hlim", 1)
    return packet


def first_fragment(scene: Scene) -> Packet:
    packet = scene.data(scene.stranger, scene.vip)
    packet.flags = "MF"
    return packet


def later_fragment(scene: Scene) -> Packet:
    packet = scene.data(scene.stranger, scene.vip)
    packet.frag = 3
    return packet


def with_options(scene: Scene) -> Packet:
    packet = scene.data(scene.stranger, scene.vip)
    packet.options = [IPOption_NOP()] * 4
    return packet


def with_extension(scene: Scene) -> Packet:
    return with_headers(scene.data(scene.stranger, scene.vip), IPv6ExtHdrDestOpt())


def cut_off(scene: Scene) -> Packet:
    """A packet that is shorter than it says."""
    return Raw(bytes(scene.data(scene.stranger, scene.vip, b"x" * 100))[:-50])


def too_big(scene: Scene) -> Packet:
    return scene.data(scene.stranger, scene.vip, b"x" * 1600)


def other_transport(scene: Scene) -> Packet:
    return sctp(scene.stranger, scene.vip)


LEFT: dict[str, tuple[Callable[[Scene], Packet], tuple[int, ...]]] = {
    "of no Service": (of_no_service, (4, 6)),
    "on its last hop": (last_hop, (4, 6)),
    "first fragment": (first_fragment, (4,)),
    "later fragment": (later_fragment, (4,)),
    "IPv4 options": (with_options, (4,)),
    "extension header": (with_extension, (6,)),
    "cut off": (cut_off, (4, 6)),
    "bigger than the MTU": (too_big, (4, 6)),
    "SCTP": (other_transport, (4, 6)),
}


@pytest.mark.parametrize(
    ("scene", "make"),
    [
        pytest.param(scene, make, id=f"{scene} {name}")
        for scene in SERVED
        for name, (make, families) in LEFT.items()
        if scene.family in families
    ],
)
def test_what_is_unusual_is_left_as_it_came(
    wire: Uplink, scene: Scene, make: Callable[[Scene], Packet]
) -> None:
    connected(wire, scene)
    kind = 0x0800 if scene.family == 4 else 0x86DD
    frame = bytes(Ether(src=CLIENT, dst=wire.near.mac, type=kind)) + bytes(make(scene))
    assert wire.passes_frame(frame)
    assert wire.node.counter("edge_forwarded") == 0
    wire.sends(scene.data(scene.stranger, scene.vip))


def test_frames_with_a_tag_or_for_another_machine_are_left(wire: Uplink, scene: Scene) -> None:
    """A tagged packet belongs to another interface; of others' frames a switch may show copies."""
    connected(wire, scene)
    packet = scene.data(scene.stranger, scene.vip)
    assert wire.passes_frame(bytes(Ether(src=CLIENT, dst=wire.near.mac) / Dot1Q(vlan=7) / packet))
    assert wire.passes_frame(bytes(Ether(src=CLIENT, dst=ROUTER) / packet))
    assert wire.passes_frame(bytes(Ether(src=CLIENT, dst="ff:ff:ff:ff:ff:ff") / packet))


def test_frames_cut_anywhere_are_left(wire: Uplink, scene: Scene) -> None:
    connected(wire, scene)
    frame = wire.frame(scene.data(scene.stranger, scene.vip))
    for size in range(14, len(frame)):
        assert wire.passes_frame(frame[:size])
