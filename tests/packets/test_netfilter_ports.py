"""Connections of netfilter that leave from a port of the masquerade range.

Netfilter knows nothing of that range. Where two connections would have one 5-tuple, it gives the
second any port from 1024 on, and so does kube-proxy's masquerade. Egress meets such a connection
behind netfilter, as one of the node itself.
"""

from __future__ import annotations

import socket

import pytest
from scapy.packet import Packet

from bpfsvc.agent.flows.netfilter_flows import NetfilterFlows
from bpfsvc.base.address import pack
from bpfsvc.base.ports import PortRange
from bpfsvc.base.protocols import PROTOCOLS
from bpfsvc.datapath.netlink.conntrack.messages import TranslatedFlow
from bpfsvc.datapath.netlink.conntrack.reservations import release, reserve
from tests.packets.node import Node
from tests.packets.packet import same, tcp
from tests.packets.peers import TCP_PEERS, UDP_PEERS, Peers

ROUTED = 7
"""Where a packet came in that the node routes."""

ARRIVED = {"of the node": 0, "of a pod": ROUTED}


@pytest.fixture(params=ARRIVED.values(), ids=list(ARRIVED))
def arrived(request: pytest.FixtureRequest) -> int:
    """Where packets of netfilter's connection came in; 0: nowhere."""
    return int(request.param)


def leave(node: Node, packet: Packet, arrived: int = 0) -> Packet:
    verdict, after = node.run("egress", packet, arrived=arrived)
    assert verdict == 0xFFFFFFFF, f"dropped at egress: {packet.summary()}"
    return after


def ours(node: Node, peers: Peers, ports: int = 20000) -> str:
    """Open a masqueraded connection; return its client as the backend sees it."""
    peers.service(node, [peers.backend], masquerade=True)
    node.settings(first=20000, ports=ports)
    return peers.connect(node, peers.external, peers.vip, peers.backend)


def answered(node: Node, peers: Peers, seen: str) -> None:
    """Assert that our connection works in both directions."""
    back = node.forward(peers.data(peers.backend, seen))
    assert same(back, peers.data(peers.vip, peers.external))
    out = node.forward(peers.data(peers.external, peers.vip))
    assert same(out, peers.data(seen, peers.backend))


def test_a_connection_of_netfilter_from_a_port_of_ours_gets_another_and_both_are_answered(
    node: Node, peers: Peers, arrived: int
) -> None:
    taken = ours(node, peers)
    out = leave(node, peers.opening(taken, peers.backend), arrived)
    moved = peers.with_port(out.src, out.payload.sport)
    assert moved != taken
    assert node.counter("source_ports_changed") == 1
    assert same(out, peers.opening(moved, peers.backend))
    assert same(
        node.ingress(peers.answer(peers.backend, moved)), peers.answer(peers.backend, taken)
    )
    answered(node, peers, taken)
    for _ in range(2):
        out = leave(node, peers.data(taken, peers.backend), arrived)
        assert same(out, peers.data(moved, peers.backend))
        back = node.ingress(peers.data(peers.backend, moved))
        assert same(back, peers.data(peers.backend, taken))
    answered(node, peers, taken)


def test_an_opening_that_is_sent_again_leaves_from_the_same_port(
    node: Node, peers: Peers, arrived: int
) -> None:
    taken = ours(node, peers)
    opening = peers.opening(taken, peers.backend)
    first, second = leave(node, opening, arrived), leave(node, opening, arrived)
    assert same(first, second)
    assert first.payload.sport != opening.payload.sport


def test_a_port_that_the_backend_may_remember_is_not_used_by_netfilter_either(
    node: Node, tcp_peers: Peers
) -> None:
    """The entry of its replies is kept for a minute, and would take the answer."""
    peers = tcp_peers
    taken = ours(node, peers)
    peers.close(node, peers.external, peers.vip, peers.backend, taken)
    out = leave(node, peers.opening(taken, peers.backend))
    moved = peers.with_port(out.src, out.payload.sport)
    assert moved != taken
    assert same(node.ingress(tcp(peers.backend, moved, "SA")), tcp(peers.backend, taken, "SA"))


def test_a_connection_of_netfilter_keeps_a_port_that_is_free_and_ours_get_others(
    node: Node, peers: Peers, arrived: int
) -> None:
    ours(node, peers, ports=4)
    used = masquerade_ports(node)
    free = sorted(set(range(20000, 20004)) - used)
    opening = peers.opening(peers.on_node(free[0]), peers.backend)
    for _ in range(2):
        assert same(leave(node, opening, arrived), opening)
    seen = {
        node.forward(peers.opening(peers.with_port(peers.external, port), peers.vip)).payload.sport
        for port in (5000, 5001)
    }
    assert seen == set(free[1:])
    fifth = peers.with_port(peers.external, 5002)
    assert node.drops("egress", node.ingress(peers.opening(fifth, peers.vip)))
    back = peers.answer(peers.backend, peers.on_node(free[0]))
    assert same(node.ingress(back), back)


def test_a_tcp_connection_of_netfilter_is_known_before_there_is_any_of_ours(
    node: Node, tcp_peers: Peers, arrived: int
) -> None:
    peers = tcp_peers
    peers.service(node, [peers.backend], masquerade=True)
    node.settings(first=20000, ports=2)
    opening = peers.opening(peers.on_node(20000), peers.backend)
    assert same(leave(node, opening, arrived), opening)
    out = node.forward(peers.opening(peers.external, peers.vip))
    assert out.payload.sport == 20001


@pytest.mark.parametrize("port", [19999, 20004])
def test_ports_outside_of_the_range_are_of_no_concern(node: Node, peers: Peers, port: int) -> None:
    ours(node, peers, ports=4)
    opening = peers.opening(peers.on_node(port), peers.backend)
    assert same(leave(node, opening), opening)
    assert node.count("netfilter_flows") == 0


def test_other_sources_and_other_destinations_are_of_no_concern(
    node: Node, peers: Peers, arrived: int
) -> None:
    """What is routed for others has the ports of others: another node masquerades, too."""
    ours(node, peers)
    for source, destination in (
        (peers.with_port(peers.external, 20000), peers.backend),
        (peers.on_node(20000), peers.other_backend),
        (peers.on_node(20000), peers.with_port(peers.backend, 9090)),
    ):
        opening = peers.opening(source, destination)
        assert same(leave(node, opening, arrived), opening)
    assert node.count("netfilter_flows") == 0


def test_a_client_with_a_port_of_the_range_is_served_with_it(node: Node, peers: Peers) -> None:
    """Beside a connection of netfilter that is masqueraded to the same port."""
    client, own = peers.with_port(peers.external, 20000), peers.on_node(20000)
    peers.service(node, [peers.backend])
    peers.service(node, [peers.backend], "other", frontends=[peers.other_vip], masquerade=True)
    node.settings(first=20000, ports=1)
    seen = peers.connect(node, client, peers.other_vip, peers.backend)
    assert seen == own
    node.settings(first=20000, ports=4)
    plain = peers.connect(node, client, peers.vip, peers.backend)
    back = node.forward(peers.data(peers.backend, plain))
    assert same(back, peers.data(peers.vip, client))
    moved = leave(node, peers.opening(own, peers.backend)).payload.sport
    assert moved != 20000
    assert same(node.forward(peers.data(peers.backend, own)), peers.data(peers.other_vip, client))


@pytest.mark.parametrize("peers", TCP_PEERS + UDP_PEERS, ids=str)
def test_a_port_is_free_when_netfilter_has_forgotten_its_connection(
    node: Node, peers: Peers
) -> None:
    """The programs note it; the agent asks netfilter, now and then, what has ended."""
    ours(node, peers, ports=4)
    first, second = sorted(set(range(20000, 20004)) - masquerade_ports(node))[:2]
    for port in (first, second):
        leave(node, peers.opening(peers.on_node(port), peers.backend))
    backend, _, number = peers.backend.rpartition(":")
    lives = TranslatedFlow(
        pack(peers.node_address),
        pack(backend.strip("[]")),
        socket.htons(first),
        socket.htons(int(number)),
        PROTOCOLS[peers.protocol],
    )
    flows = NetfilterFlows(node.pinned, PortRange(20000, 20003))
    assert reserve([lives], 60) == [lives]
    assert flows.forget_ended() == 1
    assert node.count("netfilter_flows") == 1
    release([lives])
    assert flows.forget_ended() == 1
    assert node.count("netfilter_flows") == 0


def masquerade_ports(node: Node) -> set[int]:
    """Return the ports that masqueraded connections have."""
    layout = node.pinned.layout.maps["connections"]
    seen = set()
    for name in ("connections", "new_connections"):
        for raw_key, raw in node.pinned.map(name).items():
            key, value = layout.key.unpack(raw_key), layout.value.unpack(raw)
            if value["reply"] and key["hook"] == 1:
                seen.add(int(key["destination_port"]))
    return seen
