"""The next hop that XDP finds, and connections that it leaves to the stack for want of one."""

from __future__ import annotations

import time

from tests.packets.packet import tcp
from tests.packets.peers import TCP_PEERS
from tests.packets.uplink import REDIRECT, TX, Uplink

TURN_SHIFT = 34
"""Of the clock's nanoseconds (bpf/path/xdp/forward.h)."""


def turn() -> int:
    """Return the number of this turn as an entry has it."""
    return (time.monotonic_ns() >> TURN_SHIFT) & 0xFF | 0x80


def test_what_xdp_cannot_send_is_left_to_the_stack_until_the_next_turn(xdp_uplink: Uplink) -> None:
    node, peers = xdp_uplink.node, TCP_PEERS[0]
    peers.service(node, [peers.other_backend])
    peers.connect(node, peers.external, peers.vip, peers.other_backend)
    xdp_uplink.serve(xdp_uplink.near)
    packet, before = peers.data(peers.external, peers.vip), turn()
    assert xdp_uplink.passes(packet)
    raw = node.pinned.map("connections").lookup(node.flow("ingress", packet))
    noted = node.pinned.layout.maps["connections"].value.unpack(raw or b"")["stack_turn"]
    assert noted in (before, turn())
    xdp_uplink.serve(xdp_uplink.near, xdp_uplink.far)
    node.set_fields("connections", stack_turn=(int(noted) - 1) | 0x80)
    xdp_uplink.sends(packet, REDIRECT)


def test_a_packet_takes_the_next_hop_that_its_flow_label_leads_to(xdp_uplink: Uplink) -> None:
    """As the kernel spreads connections of IPv6 over several next hops. Each bit counts."""
    node, peers, netlink = xdp_uplink.node, TCP_PEERS[1], xdp_uplink.near.namespace.netlink
    backend = peers.with_port("fd44:0:0:2::99", 8080)
    hops = ((xdp_uplink.near, "fd50::12"), (xdp_uplink.far, "fd51::13"))
    ways = [{"oif": end.index, "gateway": gateway} for end, gateway in hops]
    netlink.route("replace", dst="fd44:0:0:2::99/128", multipath=ways)
    peers.service(node, [backend], masquerade=True)
    peers.connect(node, peers.external, peers.vip, backend)

    def verdict(label: int) -> int:
        packet = tcp(peers.external, peers.vip, "PA", b"x")
        packet.fl = label
        return xdp_uplink.run(xdp_uplink.frame(packet))[0]

    # That 16 labels lead to one hop by chance is rare.
    series = [[more + 16 * low for low in range(16)] for more in (0, 0x1234A)]
    found = {label: verdict(label) for labels in series for label in labels}
    assert {TX, REDIRECT} in [{found[label] for label in labels} for labels in series]
    for label in reversed(found):
        assert verdict(label) == found[label]
