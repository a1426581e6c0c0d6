"""Packets that XDP passes to the stack unchanged, for what their entries say or lack."""

from __future__ import annotations

import struct

import pytest

from tests.packets.peers import TCP_PEERS, UDP_PEERS, Peers
from tests.packets.uplink import SERVED, Uplink, connected

MANY = 1 << 20
"""So many pairs are half open that new ones are held where the kernel evicts."""


@pytest.fixture(params=SERVED, ids=str)
def peers(request: pytest.FixtureRequest) -> Peers:
    """TCP and UDP over both families."""
    made: Peers = request.param
    return made


@pytest.mark.parametrize("masquerade", [False, True], ids=["plain", "masqueraded"])
def test_a_connection_that_the_kernel_may_evict_is_left_to_the_stack_until_it_is_established(
    xdp_uplink: Uplink, peers: Peers, masquerade: bool
) -> None:
    """Also UDP without an answer, and replies that have an entry at egress only."""
    node, client, vip, backend = xdp_uplink.node, peers.external, peers.vip, peers.backend
    node.half_open(MANY)
    peers.service(node, [backend], masquerade=masquerade)
    out = node.forward(peers.opening(client, vip))
    seen = peers.with_port(out.src, out.payload.sport)
    packets = peers.data(client, vip), peers.data(backend, seen)
    assert all(map(xdp_uplink.passes, packets))
    node.forward(peers.answer(backend, seen))
    assert all(map(xdp_uplink.passes, packets))
    node.forward(peers.proof(client, vip, backend, seen)[0])
    for packet in packets:
        xdp_uplink.sends(packet)


@pytest.mark.parametrize("masquerade", [False, True], ids=["plain", "masqueraded"])
def test_where_each_port_is_in_the_filter_what_has_no_entry_is_passed(
    xdp_uplink: Uplink, peers: Peers, masquerade: bool
) -> None:
    """Both tables are searched; what has entries is sent as before."""
    seen = connected(xdp_uplink, peers, masquerade)
    xdp_uplink.node.fill_filter(1)
    assert xdp_uplink.passes(peers.data(peers.external, peers.other_vip))
    assert xdp_uplink.passes(peers.data(peers.other_backend, seen))
    xdp_uplink.sends(peers.data(peers.external, peers.vip))
    xdp_uplink.sends(peers.data(peers.backend, seen))


def test_a_reply_whose_entry_at_egress_is_gone_is_passed(xdp_uplink: Uplink, peers: Peers) -> None:
    """It would reach the client from the backend's own address."""
    node = xdp_uplink.node
    seen = connected(xdp_uplink, peers)
    at_egress = node.flow("egress", peers.data(peers.backend, peers.external))
    assert node.pinned.map("connections").lookup(at_egress)
    node.pinned.map("connections").delete(at_egress)
    assert xdp_uplink.passes(peers.data(peers.backend, seen))
    xdp_uplink.sends(peers.data(peers.external, peers.vip))


def test_a_packet_that_is_routed_by_a_port_of_another_interface_is_passed(
    xdp_uplink: Uplink, peers: Peers
) -> None:
    """An interface has become the port of a bond, and the kernel's routes still name it."""
    node, far = xdp_uplink.node, xdp_uplink.far.index
    peers.service(node, [peers.other_backend], masquerade=True)
    peers.connect(node, peers.external, peers.vip, peers.other_backend)
    uplinks, record = node.pinned.map("uplinks"), node.pinned.layout.maps["uplinks"].value
    key = struct.pack("=I", far)
    entry = record.unpack(uplinks.lookup(key) or b"")
    uplinks.update(key, record.pack({**entry, "ifindex": far + 1000}))
    assert xdp_uplink.passes(peers.data(peers.external, peers.vip))
    assert node.counter("edge_passed__not_by_uplink") == 1


def test_replies_that_no_uplink_sends_take_the_stack_until_the_next_turn(
    xdp_uplink: Uplink, peers: Peers
) -> None:
    """They have no entry at ingress; the kernel is asked once."""
    node, near, far = xdp_uplink.node, xdp_uplink.near, xdp_uplink.far
    client = peers.with_port(peers.other_backend, 40000)
    peers.service(node, [peers.backend])
    peers.connect(node, client, peers.vip, peers.backend)
    xdp_uplink.serve(near)
    reply = peers.data(peers.backend, client)
    assert xdp_uplink.passes(reply)
    assert node.counter("edge_passed__not_by_uplink") == 1
    xdp_uplink.serve(near, far)
    assert xdp_uplink.passes(reply)
    assert node.counter("edge_passed__not_by_uplink") == 1


@pytest.mark.parametrize("peers", TCP_PEERS, ids=str)
def test_a_segment_that_acknowledges_far_more_than_those_before_is_passed(
    xdp_uplink: Uplink, peers: Peers
) -> None:
    """It may be forged. Where nothing was acknowledged before, it has nothing to be compared to."""
    connected(xdp_uplink, peers)
    segment = peers.data(peers.external, peers.vip)
    segment.payload.ack = 1 << 30
    assert xdp_uplink.passes(segment)
    assert xdp_uplink.node.counter("edge_forwarded") == 0
    xdp_uplink.node.set_fields("connections", acknowledged=0, window=0)
    xdp_uplink.sends(segment)


@pytest.mark.parametrize("peers", UDP_PEERS, ids=str)
def test_the_datagram_that_establishes_a_connection_is_left_to_the_stack(
    xdp_uplink: Uplink, peers: Peers
) -> None:
    """It is the first that follows an answer; those before the answer are sent."""
    node, client, vip, backend = xdp_uplink.node, peers.external, peers.vip, peers.backend
    peers.service(node, [backend], masquerade=True)
    out = node.forward(peers.opening(client, vip))
    seen = peers.with_port(out.src, out.payload.sport)
    datagram = peers.data(client, vip)
    xdp_uplink.sends(datagram)
    node.forward(peers.answer(backend, seen))
    assert xdp_uplink.passes(datagram)
    node.forward(datagram)
    xdp_uplink.sends(datagram)
