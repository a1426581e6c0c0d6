"""Packets to undefined ports of a cluster IP, and to addresses of no Service.

No other program serves such addresses, so these packets are refused or dropped at once.
"""

from __future__ import annotations

import pytest
from scapy.layers.inet import ICMP, IP, IPOption_NOP
from scapy.layers.inet6 import (
    ICMPv6EchoReply,
    ICMPv6EchoRequest,
    IPv6,
    IPv6ExtHdrDestOpt,
    IPv6ExtHdrHopByHop,
)
from scapy.packet import Packet, Raw

from tests.packets.node import UNSPEC, Node
from tests.packets.packet import ip, same, tcp
from tests.packets.peers import ALL_PEERS, Peers, address_of
from tests.packets.refusals import refused

NETWORKS = ("10.96.0.0/16", "fd96::/112")


@pytest.fixture
def guarded(node: Node, peers: Peers) -> Node:
    """A node with a Service on a cluster IP that is in no known service network."""
    peers.service(node, [peers.backend], guarded=True)
    return node


@pytest.fixture
def with_networks(guarded: Node) -> Node:
    """The same node with the service networks set."""
    guarded.service_networks(*NETWORKS)
    return guarded


def echo(source: str, destination: str, *, reply: bool = False) -> Packet:
    """Make a ping, or the answer to one."""
    if ":" in source:
        header = ICMPv6EchoReply if reply else ICMPv6EchoRequest
        return ip(source, destination) / header(id=5, seq=1, data=b"abcdefghijkl")
    return ip(source, destination) / ICMP(type=0 if reply else 8, id=5, seq=1) / b"abcdefghijkl"


@pytest.mark.parametrize("who", ["pod", "node", "stranger"])
def test_an_undefined_port_of_a_live_cluster_ip_is_refused(
    guarded: Node, peers: Peers, who: str
) -> None:
    client = {"pod": peers.client, "node": peers.on_node(40000), "stranger": peers.external}[who]
    for port in (1, 79, 81, 8080, 65535):
        assert refused(guarded, peers.opening(client, peers.with_port(peers.vip, port)))
    assert guarded.states() == (0, 0)


def test_the_port_of_one_protocol_is_undefined_in_the_others(guarded: Node, peers: Peers) -> None:
    for other in ALL_PEERS:
        if other.family == peers.family and other.protocol != peers.protocol:
            assert refused(guarded, other.opening(peers.client, peers.vip))


def test_a_port_that_is_defined_is_served(with_networks: Node, peers: Peers) -> None:
    peers.connect(with_networks, peers.client, peers.vip, peers.backend)
    assert with_networks.counter("rejected__no_endpoints") == 0


def test_a_ping_to_a_live_cluster_ip_is_refused(guarded: Node, peers: Peers) -> None:
    assert refused(guarded, echo(address_of(peers.client), address_of(peers.vip)))
    assert guarded.counter("rejected__no_endpoints") == 1


def test_a_ping_with_a_longer_ip_header_is_refused_too(guarded: Node, peers: Peers) -> None:
    ping = echo(address_of(peers.client), address_of(peers.vip))
    if peers.family == 6:
        assert refused(guarded, ping, IPv6ExtHdrHopByHop(), IPv6ExtHdrDestOpt())
    else:
        ping.options = [IPOption_NOP()] * 4
        assert refused(guarded, ping)


def test_packets_to_an_unassigned_address_of_a_service_network_are_dropped(
    with_networks: Node, peers: Peers
) -> None:
    packets = [
        peers.opening(peers.client, peers.other_vip),
        peers.opening(peers.external, peers.with_port(peers.other_vip, 443)),
        echo(address_of(peers.client), address_of(peers.other_vip)),
    ]
    for packet in packets:
        assert with_networks.drops("ingress", packet)
    assert with_networks.counter("dropped__no_endpoints") == len(packets)
    assert with_networks.states() == (0, 0)


def test_a_network_has_a_first_and_a_last_address(with_networks: Node, peers: Peers) -> None:
    inside = {4: ("10.96.0.0", "10.96.255.255"), 6: ("fd96::", "fd96::ffff")}[peers.family]
    outside = {4: ("10.95.255.255", "10.97.0.0"), 6: ("fd95::ffff", "fd96::1:0")}[peers.family]
    for address in inside:
        assert with_networks.drops(
            "ingress", peers.opening(peers.client, peers.with_port(address, 80))
        )
    for address in outside:
        packet = peers.opening(peers.client, peers.with_port(address, 80))
        assert same(with_networks.forward(packet), packet)


def test_a_cluster_ip_refuses_while_the_rest_of_its_network_drops(
    with_networks: Node, peers: Peers
) -> None:
    assert refused(with_networks, peers.opening(peers.client, peers.with_port(peers.vip, 81)))
    assert refused(with_networks, echo(address_of(peers.client), address_of(peers.vip)))


def test_other_ports_of_an_address_without_a_guard_pass_unchanged(node: Node, peers: Peers) -> None:
    """An external IP may be another host."""
    peers.service(node, [peers.backend])
    for packet in (
        peers.opening(peers.client, peers.with_port(peers.vip, 81)),
        echo(address_of(peers.client), address_of(peers.vip)),
    ):
        assert same(node.forward(packet), packet)


def test_an_external_ip_in_a_service_network_is_served_and_drops_on_other_ports(
    with_networks: Node, peers: Peers
) -> None:
    peers.service(with_networks, [peers.other_backend], "other", frontends=[peers.other_vip])
    out = with_networks.forward(peers.opening(peers.client, peers.other_vip))
    assert same(out, peers.opening(peers.client, peers.other_backend))
    assert with_networks.drops(
        "ingress", peers.opening(peers.client, peers.with_port(peers.other_vip, 81))
    )


def untouched(peers: Peers) -> dict[str, Packet]:
    """Return packets that no guard refuses, though some are to or from guarded addresses."""
    client, vip, free = address_of(peers.client), address_of(peers.vip), address_of(peers.other_vip)
    base = IPv6(src=client, dst=vip, nh=47) if ":" in client else IP(src=client, dst=vip, proto=47)
    gre = base / Raw(b"x" * 20)
    packets = {f"echo reply to {to}": echo(client, to, reply=True) for to in (vip, free)}
    for flags in ("A", "PA", "FA", "R", "SA"):
        for to in (vip, free):
            packets[f"TCP {flags} to {to}"] = tcp(peers.client, peers.with_port(to, 81), flags)
    return packets | {
        "GRE": gre,
        "from a cluster IP": peers.opening(peers.with_port(vip, 81), peers.client),
        "ping from a cluster IP": echo(vip, client),
        "to a backend": peers.opening(peers.client, peers.backend),
        "to a port of the node": peers.opening(peers.external, peers.on_node(22)),
        "ping to the node": echo(address_of(peers.external), peers.node_address),
        "ping to a backend": echo(client, address_of(peers.backend)),
    }


def test_all_other_packets_pass_unchanged(with_networks: Node, peers: Peers) -> None:
    for byte in (0, 1):
        with_networks.fill_filter(byte)
        for name, packet in untouched(peers).items():
            assert same(with_networks.forward(packet), packet), name
    assert with_networks.states() == (0, 0)


def test_egress_guards_nothing(with_networks: Node, peers: Peers) -> None:
    """What came by an interface was judged there; what the node itself sends has its own tests."""
    came_by = with_networks.interface
    for byte in (0, 1):
        with_networks.fill_filter(byte)
        for to in (peers.vip, peers.other_vip):
            for packet in (
                peers.opening(peers.client, peers.with_port(to, 81)),
                echo(address_of(peers.client), address_of(to)),
            ):
                verdict, after = with_networks.run("egress", packet, arrived=came_by)
                assert verdict == UNSPEC
                assert same(after, packet)


def test_an_established_connection_outlives_its_cluster_ip(
    with_networks: Node, peers: Peers
) -> None:
    """Guards refuse new connections only."""
    peers.connect(with_networks, peers.client, peers.vip, peers.backend)
    peers.service(with_networks, [peers.backend], frontends=[peers.other_vip], guarded=True)
    out = with_networks.forward(peers.data(peers.client, peers.vip))
    assert same(out, peers.data(peers.client, peers.backend))
    back = with_networks.forward(peers.data(peers.backend, peers.client))
    assert same(back, peers.data(peers.vip, peers.client))
    later = peers.with_port(peers.client, 40001)
    assert with_networks.drops("ingress", peers.opening(later, peers.vip))
    assert refused(with_networks, peers.opening(later, peers.with_port(peers.other_vip, 81)))


def test_a_removed_network_guards_nothing(with_networks: Node, peers: Peers) -> None:
    with_networks.service_networks(NETWORKS[peers.family == 4])
    packet = peers.opening(peers.client, peers.other_vip)
    assert same(with_networks.forward(packet), packet)


def test_a_network_of_a_whole_family_does_not_contain_the_other_family(
    guarded: Node, peers: Peers
) -> None:
    guarded.service_networks("0.0.0.0/0" if peers.family == 6 else "fd00::/8")
    packet = peers.opening(peers.client, peers.other_vip)
    assert same(guarded.forward(packet), packet)
