"""Packets that are not to a Service pass unchanged and make no entries."""

from __future__ import annotations

import pytest
from scapy.layers.inet import ICMP, IP, TCP, UDP, IPOption_NOP
from scapy.layers.inet6 import (
    ICMPv6EchoRequest,
    ICMPv6ND_NS,
    IPv6,
    IPv6ExtHdrHopByHop,
)
from scapy.layers.l2 import ARP, Dot1Q, Ether
from scapy.layers.sctp import SCTP
from scapy.packet import Packet, Raw

from tests.packets.node import UNSPEC, Node
from tests.packets.packet import LINK, same, tcp, udp
from tests.packets.peers import Peers

POD, VIP, BACKEND, US = "10.244.1.5", "10.96.0.10", "10.244.2.7", "192.168.50.11"
POD6, VIP6, BACKEND6 = "fd44:0:0:1::5", "fd96::10", "fd44:0:0:2::7"
SYN = TCP(sport=40000, dport=80, flags="S")

FRAMES = {
    "ARP": LINK / ARP(psrc=POD, pdst=VIP),
    "an unknown EtherType": Ether(bytes(LINK)[:12] + b"\x88\xb5") / Raw(b"x" * 50),
    "neighbour discovery": LINK / IPv6(src=POD6, dst=VIP6) / ICMPv6ND_NS(tgt=VIP6),
    "SCTP to a TCP frontend": LINK / IP(src=POD, dst=VIP) / SCTP(sport=40000, dport=80),
    "GRE to a frontend's address": LINK / IP(src=POD, dst=VIP, proto=47) / Raw(b"x" * 20),
    "IP in IP to a frontend's address": LINK / IP(src=POD, dst=VIP) / IP(src=POD, dst=VIP) / SYN,
    "IP in IPv6 to a frontend's address": LINK / IPv6(src=POD6, dst=VIP6) / IP(dst=VIP) / SYN,
    "IPv6 in IPv6": LINK / IPv6(src=POD6, dst=VIP6) / IPv6(src=POD6, dst=VIP6) / SYN,
    "a tunnel by UDP": (LINK / udp(f"{POD}:1337", f"{US}:6080", bytes(IP(src=POD, dst=VIP) / SYN))),
    "ICMP echo": LINK / IP(src=POD, dst=VIP) / ICMP() / b"ping",
    "ICMPv6 echo": LINK / IPv6(src=POD6, dst=VIP6) / ICMPv6EchoRequest(data=b"ping"),
    "a VLAN frame": LINK / Dot1Q(vlan=7) / IP(src=POD, dst=VIP) / SYN,
    "IPv6 options before TCP to another address": (
        LINK / IPv6(src=POD6, dst="fd96::11") / IPv6ExtHdrHopByHop() / SYN
    ),
    "TCP to another port": LINK / tcp(f"{POD}:40000", f"{VIP}:81"),
    "TCP to another address": LINK / tcp(f"{POD}:40000", "10.96.0.11:80"),
    "UDP to a TCP frontend": LINK / udp(f"{POD}:40000", f"{VIP}:80"),
    "TCP with IP options": LINK / IP(src=POD, dst="10.96.0.11", options=[IPOption_NOP()] * 8) / SYN,
    "an IPv4-mapped address in IPv6": LINK / IPv6(src=POD6, dst=f"::ffff:{US}") / SYN,
}


def short(packet: Packet, length: int) -> Packet:
    return Raw(bytes(LINK / packet)[:length])


# The kernel's test run itself refuses frames with less than a whole IP header.
TRUNCATED = {
    "an IP header and no more": short(IP(src=POD, dst=VIP) / SYN, 34),
    "ports and no flags": short(IP(src=POD, dst=VIP) / SYN, 42),
    "half of the UDP ports": short(IP(src=POD, dst=VIP) / UDP(sport=40000, dport=80), 37),
    "an ICMP header and no more": short(IP(src=POD, dst=VIP) / ICMP(type=3), 42),
    "a length of 0 in the IP header": LINK / IP(src=POD, dst=VIP, ihl=0, len=40) / SYN,
}


@pytest.fixture(params=[False, True], ids=["filtered", "looked up"])
def web(request: pytest.FixtureRequest, node: Node) -> Node:
    """A node with TCP frontends and one connection; unfiltered packets are looked up."""
    node.service("web", [f"{BACKEND}:8080"], frontends=[f"{VIP}:80"], node_port=30080)
    node.service("web6", [f"[{BACKEND6}]:8080"], frontends=[f"[{VIP6}]:80"], family=6)
    node.forward(tcp(f"{POD}:41000", f"{VIP}:80"))
    node.forward(tcp(f"{BACKEND}:8080", f"{POD}:41000", "SA"))
    node.forward(tcp(f"{POD}:41000", f"{VIP}:80", "A"))
    if request.param:
        node.fill_filter(1)
    return node


@pytest.mark.parametrize("hook", ["ingress", "egress"])
@pytest.mark.parametrize("name", [*FRAMES, *TRUNCATED])
def test_an_unrelated_packet_passes_unchanged(web: Node, name: str, hook: str) -> None:
    frame = bytes((FRAMES | TRUNCATED)[name])
    entries = web.count("connections"), web.count("new_connections")
    assert web.run_frame(hook, frame) == (UNSPEC, frame)
    assert (web.count("connections"), web.count("new_connections")) == entries


@pytest.mark.parametrize("flags", ["A", "PA", "FA", "R", "RA", "SA", ""])
def test_tcp_from_the_middle_of_an_unknown_connection_passes_unchanged(
    node: Node, tcp_peers: Peers, flags: str
) -> None:
    """When bpfsvc replaces kube-proxy, conntrack continues to translate these."""
    tcp_peers.service(node, [tcp_peers.backend])
    packet = tcp(tcp_peers.client, tcp_peers.vip, flags)
    assert same(node.forward(packet), packet)
    back = tcp(tcp_peers.backend, tcp_peers.client, flags)
    assert same(node.forward(back), back)
    assert node.count("new_connections") == 0


def test_packets_to_loopback_addresses_from_outside_are_never_translated(
    node: Node, peers: Peers
) -> None:
    """A NodePort there is for the node's own sockets, which the socket LB translates."""
    loopback = "127.0.0.1" if peers.family == 4 else "::1"
    node.node_address(loopback, nodeports=True)
    peers.service(node, [peers.backend], node_port=30080)
    if peers.family == 4:
        peers.service(node, [peers.backend], "exact", frontends=[peers.with_port(loopback, 30080)])
    packet = peers.opening(peers.external, peers.with_port(loopback, 30080))
    for takeover in (0, 1):
        node.settings(takeover=takeover)
        assert same(node.forward(packet), packet)


def test_ip_options_do_not_hide_a_connection(node: Node) -> None:
    node.service("web", [f"{BACKEND}:8080"], frontends=[f"{VIP}:80"])
    options = [IPOption_NOP()] * 8
    out = node.forward(IP(src=POD, dst=VIP, options=options) / SYN)
    wanted = IP(src=POD, dst=BACKEND, options=options) / TCP(sport=40000, dport=8080, flags="S")
    assert same(out, wanted)
