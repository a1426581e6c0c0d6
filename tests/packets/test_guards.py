"""What no frontend takes: ports that a cluster IP does not have, and addresses of no Service.

Nobody else is behind such addresses, so whoever asks is told, or meets silence, at once.
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

from tests.packets.node import Node, ip, same, tcp
from tests.packets.refusals import refused
from tests.packets.scene import SCENES, Scene, bare

NETWORKS = ("10.96.0.0/16", "fd96::/112")


@pytest.fixture
def guarded(node: Node, scene: Scene) -> Node:
    """A node with a Service whose address is a cluster IP, out of no known network."""
    scene.service(node, [scene.backend], guarded=True)
    return node


@pytest.fixture
def networked(guarded: Node) -> Node:
    """The same with the networks of cluster IPs."""
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
    guarded: Node, scene: Scene, who: str
) -> None:
    client = {"pod": scene.client, "node": scene.node_place(40000), "stranger": scene.stranger}[who]
    for port in (1, 79, 81, 8080, 65535):
        assert refused(guarded, scene.opening(client, scene.at(scene.vip, port)))
    assert guarded.states() == (0, 0)


def test_the_port_of_one_protocol_is_undefined_in_the_others(guarded: Node, scene: Scene) -> None:
    for other in SCENES:
        if other.family == scene.family and other.protocol != scene.protocol:
            assert refused(guarded, other.opening(scene.client, scene.vip))


def test_a_port_that_is_defined_is_served(networked: Node, scene: Scene) -> None:
    scene.connect(networked, scene.client, scene.vip, scene.backend)
    assert networked.counter("rejected__no_endpoints") == 0


def test_a_ping_to_a_live_cluster_ip_is_refused(guarded: Node, scene: Scene) -> None:
    assert refused(guarded, echo(bare(scene.client), bare(scene.vip)))
    assert guarded.counter("rejected__no_endpoints") == 1


def test_a_ping_with_a_longer_ip_header_is_refused_too(guarded: Node, scene: Scene) -> None:
    ping = echo(bare(scene.client), bare(scene.vip))
    if scene.family == 6:
        assert refused(guarded, ping, IPv6ExtHdrHopByHop(), IPv6ExtHdrDestOpt())
    else:
        ping.options = [IPOption_NOP()] * 4
        assert refused(guarded, ping)


def test_an_address_of_a_service_network_that_is_no_cluster_ip_is_silent(
    networked: Node, scene: Scene
) -> None:
    packets = [
        scene.opening(scene.client, scene.other_vip),
        scene.opening(scene.stranger, scene.at(scene.other_vip, 443)),
        echo(bare(scene.client), bare(scene.other_vip)),
    ]
    for packet in packets:
        assert networked.drops("ingress", packet)
    assert networked.counter("dropped__no_endpoints") == len(packets)
    assert networked.states() == (0, 0)


def test_a_network_has_a_first_and_a_last_address(networked: Node, scene: Scene) -> None:
    inside = {4: ("10.96.0.0", "10.96.255.255"), 6: ("fd96::", "fd96::ffff")}[scene.family]
    outside = {4: ("10.95.255.255", "10.97.0.0"), 6: ("fd95::ffff", "fd96::1:0")}[scene.family]
    for address in inside:
        assert networked.drops("ingress", scene.opening(scene.client, scene.at(address, 80)))
    for address in outside:
        packet = scene.opening(scene.client, scene.at(address, 80))
        assert same(networked.forward(packet), packet)


def test_a_cluster_ip_in_a_network_is_told_apart_from_the_rest(
    networked: Node, scene: Scene
) -> None:
    assert refused(networked, scene.opening(scene.client, scene.at(scene.vip, 81)))
    assert refused(networked, echo(bare(scene.client), bare(scene.vip)))


def test_an_address_without_a_guard_has_only_the_ports_it_has(node: Node, scene: Scene) -> None:
    """An external IP may be a host of its own."""
    scene.service(node, [scene.backend])
    for packet in (
        scene.opening(scene.client, scene.at(scene.vip, 81)),
        echo(bare(scene.client), bare(scene.vip)),
    ):
        assert same(node.forward(packet), packet)


def test_an_external_ip_out_of_a_network_is_served_and_silent_on_other_ports(
    networked: Node, scene: Scene
) -> None:
    scene.service(networked, [scene.other_backend], "other", frontends=[scene.other_vip])
    out = networked.forward(scene.opening(scene.client, scene.other_vip))
    assert same(out, scene.opening(scene.client, scene.other_backend))
    assert networked.drops("ingress", scene.opening(scene.client, scene.at(scene.other_vip, 81)))


def untouched(scene: Scene) -> dict[str, Packet]:
    """Give what concerns no guard, though it goes to guarded addresses."""
    client, vip, free = bare(scene.client), bare(scene.vip), bare(scene.other_vip)
    base = IPv6(src=client, dst=vip, nh=47) if ":" in client else IP(src=client, dst=vip, proto=47)
    gre = base / Raw(b"x" * 20)
    packets = {f"echo reply to {to}": echo(client, to, reply=True) for to in (vip, free)}
    for flags in ("A", "PA", "FA", "R", "SA"):
        for to in (vip, free):
            packets[f"TCP {flags} to {to}"] = tcp(scene.client, scene.at(to, 81), flags)
    return packets | {
        "GRE": gre,
        "from a cluster IP": scene.opening(scene.at(vip, 81), scene.client),
        "ping from a cluster IP": echo(vip, client),
        "to a backend": scene.opening(scene.client, scene.backend),
        "to a port of the node": scene.opening(scene.stranger, scene.node_place(22)),
        "ping to the node": echo(bare(scene.stranger), scene.us),
        "ping to a backend": echo(client, bare(scene.backend)),
    }


def test_all_else_passes_as_it_is(networked: Node, scene: Scene) -> None:
    for byte in (0, 1):
        networked.fill_filter(byte)
        for name, packet in untouched(scene).items():
            assert same(networked.forward(packet), packet), name
    assert networked.states() == (0, 0)


def test_nothing_is_guarded_on_its_way_out(networked: Node, scene: Scene) -> None:
    for byte in (0, 1):
        networked.fill_filter(byte)
        for to in (scene.vip, scene.other_vip):
            for packet in (
                scene.opening(scene.client, scene.at(to, 81)),
                echo(bare(scene.client), bare(to)),
            ):
                assert same(networked.egress(packet), packet)


def test_a_connection_outlives_its_cluster_ip(networked: Node, scene: Scene) -> None:
    """A verdict is for new connections."""
    scene.connect(networked, scene.client, scene.vip, scene.backend)
    scene.service(networked, [scene.backend], frontends=[scene.other_vip], guarded=True)
    out = networked.forward(scene.data(scene.client, scene.vip))
    assert same(out, scene.data(scene.client, scene.backend))
    back = networked.forward(scene.data(scene.backend, scene.client))
    assert same(back, scene.data(scene.vip, scene.client))
    later = scene.at(scene.client, 40001)
    assert networked.drops("ingress", scene.opening(later, scene.vip))
    assert refused(networked, scene.opening(later, scene.at(scene.other_vip, 81)))


def test_a_network_that_is_no_more_guards_nothing(networked: Node, scene: Scene) -> None:
    networked.service_networks(NETWORKS[scene.family == 4])
    packet = scene.opening(scene.client, scene.other_vip)
    assert same(networked.forward(packet), packet)


def test_the_whole_of_a_family_does_not_reach_into_the_other(guarded: Node, scene: Scene) -> None:
    guarded.service_networks("0.0.0.0/0" if scene.family == 6 else "fd00::/8")
    packet = scene.opening(scene.client, scene.other_vip)
    assert same(guarded.forward(packet), packet)
