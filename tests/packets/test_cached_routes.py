"""The routes that the fast path has asked for, and keeps for a moment."""

from __future__ import annotations

from collections.abc import Iterable

import pytest
from scapy.layers.inet6 import IPv6
from scapy.packet import Packet

from bpfsvc.devtools.lab.patience import wait
from tests.packets.fast_path import FastPathTestbed, forwarded
from tests.packets.node import UNSPEC
from tests.packets.peers import Peers
from tests.packets.test_fast_path_direct import open_direct

PACKETS = 40


def to_backend(peers: Peers, *, dscp: int = 0, label: int = 0, payload: bytes = b"data") -> Packet:
    """Return a packet of the client's open connection."""
    packet = peers.data(peers.client, peers.backend, payload)
    if isinstance(packet, IPv6):
        packet.tc, packet.fl = dscp << 2, label
    else:
        packet.tos = dscp << 2
    return packet


def asked_for(testbed: FastPathTestbed, packets: Iterable[Packet]) -> int:
    """Send packets, all by the fast path; return how often a route was asked for."""
    before = testbed.routes_asked()
    for packet in packets:
        assert forwarded(testbed.to_neighbour("pod0", packet), packet)
    return testbed.routes_asked() - before


def test_a_new_route_is_followed_within_a_second(
    testbed: FastPathTestbed, fast_peers: Peers
) -> None:
    """Though no agent says so: the answer of the kernel is used for a part of a second."""
    open_direct(testbed, fast_peers)
    packet = fast_peers.data(fast_peers.client, fast_peers.backend)
    assert forwarded(testbed.to_neighbour("pod0", packet), packet)
    testbed.unroute(fast_peers.backend)
    wait(
        lambda: testbed.run("ingress", "pod0", packet)[0] == UNSPEC,
        "the route that was removed is not used any more",
        timeout=1,
    )


def test_a_packet_to_an_unknown_neighbour_is_sent_by_the_kernel_that_resolves_it(
    testbed: FastPathTestbed, fast_peers: Peers
) -> None:
    open_direct(testbed, fast_peers)
    testbed.forget_neighbour(fast_peers.client, "pod0")
    packet = fast_peers.data(fast_peers.backend, fast_peers.client)
    assert forwarded(testbed.to_neighbour("eth0", packet), packet)


def test_a_longer_packet_to_an_unknown_neighbour_is_fast_as_the_one_before(
    testbed: FastPathTestbed, fast_peers: Peers
) -> None:
    """The kernel says the MTU of a way only if it knows the neighbour."""
    open_direct(testbed, fast_peers)
    testbed.forget_neighbour(fast_peers.client, "pod0")
    for payload in (b"short", b"x" * 1000):
        packet = fast_peers.data(fast_peers.backend, fast_peers.client, payload)
        assert forwarded(testbed.to_neighbour("eth0", packet), packet)


def test_a_packet_without_a_route_does_not_take_that_of_others_in_its_place(
    testbed: FastPathTestbed, fast_peers: Peers
) -> None:
    """Two pairs of addresses, or two classes of one pair, may have one place among the routes."""
    open_direct(testbed, fast_peers)
    packet = to_backend(fast_peers)
    assert forwarded(testbed.to_neighbour("pod0", packet), packet)
    testbed.to_stack("pod0", to_backend(fast_peers, dscp=8, payload=bytes(1600)))
    assert forwarded(testbed.to_neighbour("pod0", packet), packet)


@pytest.mark.usefixtures("one_cpu")
def test_connections_of_two_addresses_have_one_route_whatever_their_flow_labels(
    testbed: FastPathTestbed, fast_peers: Peers
) -> None:
    """Forty packets of two connections by turns; the time of a route may end meanwhile."""
    open_direct(testbed, fast_peers)
    packets = (to_backend(fast_peers, label=7 + number % 2) for number in range(PACKETS))
    assert asked_for(testbed, packets) < PACKETS // 2


@pytest.mark.usefixtures("one_cpu")
def test_each_traffic_class_has_a_route_of_its_own(
    testbed: FastPathTestbed, fast_peers: Peers
) -> None:
    open_direct(testbed, fast_peers)
    packets = (to_backend(fast_peers, dscp=number % 2) for number in range(PACKETS))
    assert asked_for(testbed, packets) >= PACKETS - 2
