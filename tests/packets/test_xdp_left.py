"""Packets that XDP passes to the stack unchanged, for their form alone."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from scapy.layers.inet import IPOption_NOP
from scapy.layers.inet6 import IPv6ExtHdrDestOpt
from scapy.layers.l2 import Dot1Q, Ether
from scapy.packet import Packet, Raw

from tests.packets.extension_headers import with_headers
from tests.packets.packet import sctp
from tests.packets.peers import Peers
from tests.packets.uplink import (
    CLIENT,
    ROUTER,
    SERVED,
    Uplink,
    connected,
)


@pytest.fixture(params=SERVED, ids=str)
def peers(request: pytest.FixtureRequest) -> Peers:
    """TCP and UDP over both families."""
    made: Peers = request.param
    return made


def of_no_service(peers: Peers) -> Packet:
    return peers.data(peers.external, peers.other_vip)


def last_hop(peers: Peers) -> Packet:
    packet = peers.data(peers.external, peers.vip)
    setattr(packet, "ttl" if peers.family == 4 else "hlim", 1)
    return packet


def first_fragment(peers: Peers) -> Packet:
    packet = peers.data(peers.external, peers.vip)
    packet.flags = "MF"
    return packet


def later_fragment(peers: Peers) -> Packet:
    packet = peers.data(peers.external, peers.vip)
    packet.frag = 3
    return packet


def with_options(peers: Peers) -> Packet:
    packet = peers.data(peers.external, peers.vip)
    packet.options = [IPOption_NOP()] * 4
    return packet


def with_extension(peers: Peers) -> Packet:
    return with_headers(peers.data(peers.external, peers.vip), IPv6ExtHdrDestOpt())


def cut_off(peers: Peers) -> Packet:
    """Make a packet that is shorter than its header says."""
    return Raw(bytes(peers.data(peers.external, peers.vip, b"x" * 100))[:-50])


def too_big(peers: Peers) -> Packet:
    return peers.data(peers.external, peers.vip, b"x" * 1600)


def too_short(peers: Peers) -> Packet:
    """Make a packet whose header says that it ends within its ports and checksum."""
    packet = peers.data(peers.external, peers.vip)
    if peers.family == 4:
        packet.len = 27
    else:
        packet.plen = 7
    return packet


def other_transport(peers: Peers) -> Packet:
    return sctp(peers.external, peers.vip)


LEFT: dict[str, tuple[Callable[[Peers], Packet], tuple[int, ...]]] = {
    "of no Service": (of_no_service, (4, 6)),
    "on its last hop": (last_hop, (4, 6)),
    "first fragment": (first_fragment, (4,)),
    "later fragment": (later_fragment, (4,)),
    "IPv4 options": (with_options, (4,)),
    "extension header": (with_extension, (6,)),
    "cut off": (cut_off, (4, 6)),
    "bigger than the MTU": (too_big, (4, 6)),
    "without all of its ports": (too_short, (4, 6)),
    "SCTP": (other_transport, (4, 6)),
}


@pytest.mark.parametrize(
    ("peers", "make"),
    [
        pytest.param(peers, make, id=f"{peers} {name}")
        for peers in SERVED
        for name, (make, families) in LEFT.items()
        if peers.family in families
    ],
)
def test_an_unusual_packet_is_passed_unchanged(
    xdp_uplink: Uplink, peers: Peers, make: Callable[[Peers], Packet]
) -> None:
    connected(xdp_uplink, peers)
    kind = 0x0800 if peers.family == 4 else 0x86DD
    frame = bytes(Ether(src=CLIENT, dst=xdp_uplink.near.mac, type=kind)) + bytes(make(peers))
    assert xdp_uplink.passes_frame(frame)
    assert xdp_uplink.node.counter("edge_forwarded") == 0
    xdp_uplink.sends(peers.data(peers.external, peers.vip))


def test_frames_with_a_vlan_tag_or_for_another_machine_are_passed(
    xdp_uplink: Uplink, peers: Peers
) -> None:
    """A tagged packet belongs to another interface; a switch may deliver copies of other frames."""
    connected(xdp_uplink, peers)
    packet = peers.data(peers.external, peers.vip)
    assert xdp_uplink.passes_frame(
        bytes(Ether(src=CLIENT, dst=xdp_uplink.near.mac) / Dot1Q(vlan=7) / packet)
    )
    assert xdp_uplink.passes_frame(bytes(Ether(src=CLIENT, dst=ROUTER) / packet))
    assert xdp_uplink.passes_frame(bytes(Ether(src=CLIENT, dst="ff:ff:ff:ff:ff:ff") / packet))


@pytest.mark.parametrize("octet", [1, 3, 5])
def test_a_frame_whose_destination_differs_in_one_octet_is_passed(
    xdp_uplink: Uplink, peers: Peers, octet: int
) -> None:
    connected(xdp_uplink, peers)
    frame = bytearray(xdp_uplink.frame(peers.data(peers.external, peers.vip)))
    frame[octet] ^= 1
    assert xdp_uplink.passes_frame(bytes(frame))
    xdp_uplink.sends(peers.data(peers.external, peers.vip))


def test_frames_cut_at_any_length_are_passed(xdp_uplink: Uplink, peers: Peers) -> None:
    connected(xdp_uplink, peers)
    frame = xdp_uplink.frame(peers.data(peers.external, peers.vip))
    for size in range(14, len(frame)):
        assert xdp_uplink.passes_frame(frame[:size])
