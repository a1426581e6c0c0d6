"""Packets from the middle of a connection to a frontend; the node has no entry of it.

The address may have been another node's until a moment ago, or the entry has expired. The client
must know at once, and no packet may leave with a frontend as its destination.
"""

from __future__ import annotations

import fcntl
import ipaddress
import os
import struct
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from scapy.layers.inet import TCP
from scapy.packet import Packet

from bpfsvc.datapath.attach.interfaces import Attacher
from bpfsvc.datapath.netlink.hooks import Hook
from bpfsvc.devtools.lab.links import End, add_route, find, host_route
from tests.packets.fast_path import hop, prepare
from tests.packets.node import Node
from tests.packets.packet import ip, sctp, tcp
from tests.packets.peers import Peers, address_of
from tests.packets.wire import POD, UPLINK, Wire, wire

_TUN_SET, _TUN, _NO_HEADER = 0x400454CA, 1, 0x1000
"""TUNSETIFF and its flags."""

OPTIONS = [("NOP", None), ("NOP", None), ("Timestamp", (1, 0))]


@pytest.fixture(scope="module")
def links(loaded: Node) -> Iterator[Wire]:
    with wire(loaded) as made:
        yield made


@pytest.fixture
def node_on_wire(links: Wire, node: Node, tcp_peers: Peers) -> Wire:
    """A node that serves a frontend, and routes its address by the uplink."""
    assert links.node is node
    prepare(links.testbed, tcp_peers)
    node.settings()
    router = "192.168.50.12" if tcp_peers.family == 4 else "fd50::12"
    for address in (tcp_peers.vip, tcp_peers.other_vip):
        links.testbed.route(address, UPLINK, router)
    tcp_peers.service(node, [tcp_peers.backend])
    links.clear()
    return links


def segment(peers: Peers, flags: str, size: int = 0, **fields: object) -> Packet:
    """Make a packet of a connection from the pod to the frontend."""
    packet = tcp(peers.client, peers.vip, flags, bytes(number & 0xFF for number in range(size)))
    packet.payload.seq, packet.payload.ack = 0x89ABCDEF, 0x01234567
    for name, value in fields.items():
        setattr(packet.payload, name, value)
    return packet


def answer(packet: Packet) -> Packet:
    """Make the reset that answers a segment (RFC 9293, 3.10.7.1), as the client gets it."""
    was = packet.payload
    reset = TCP(sport=was.dport, dport=was.sport, flags="R", seq=was.ack, ack=0, window=0)
    if "A" not in str(was.flags):
        length = len(bytes(was.payload)) + ("S" in str(was.flags)) + ("F" in str(was.flags))
        reset = TCP(sport=was.dport, dport=was.sport, flags="RA", seq=0, window=0)
        reset.ack = was.seq + length & 0xFFFFFFFF
    made = ip(packet.dst, packet.src) / reset
    if packet.version == 4:
        made.id, made.flags, made.tos = packet.id, packet.flags, packet.tos
    return hop(made)


def other_flow(peers: Peers) -> Packet:
    """Make a packet to no frontend; what was sent before it has been handled when it arrives."""
    return tcp(peers.client, peers.with_port(peers.backend, 9999), "PA", b"after")


def leaves_nothing(links: Wire, peers: Peers) -> bool:
    """True if nothing of what was sent until now leaves by the uplink."""
    links.send(POD, other_flow(peers))
    return len(links.seen(UPLINK, hop(other_flow(peers)))) == 1


def nft(links: Wire, text: str) -> None:
    """Change the rules of netfilter on the node."""
    with links.testbed.here.entered():
        subprocess.run(["nft", "-f", "-"], input=text, text=True, check=True)


@pytest.mark.parametrize("flags", ["A", "PA", "FA", "SA", "F", "P", "", "SF"])
def test_a_packet_of_an_unknown_connection_is_answered_by_a_reset(
    node_on_wire: Wire, tcp_peers: Peers, flags: str
) -> None:
    packet = segment(tcp_peers, flags)
    node_on_wire.send(POD, packet)
    assert len(node_on_wire.seen(POD, answer(packet))) == 1
    assert leaves_nothing(node_on_wire, tcp_peers)
    assert node_on_wire.node.counter("rejected__unknown_connection") == 1


@pytest.mark.parametrize("size", [0, 1, 2, 3, 1000, 1400])
@pytest.mark.parametrize("options", [[], OPTIONS], ids=["plain", "options"])
def test_the_reset_has_no_data_and_the_right_checksums(
    node_on_wire: Wire, tcp_peers: Peers, size: int, options: list[tuple[str, object]]
) -> None:
    for urgent, flags in ((0, "PA"), (7, "PAU"), (0, "FP")):
        packet = segment(tcp_peers, flags, size, options=options, urgptr=urgent, window=501)
        node_on_wire.send(POD, packet)
        node_on_wire.seen(POD, answer(packet))


def test_a_reset_is_never_answered_and_does_not_leave(node_on_wire: Wire, tcp_peers: Peers) -> None:
    for flags in ("R", "RA", "SR", "FSRPAU"):
        node_on_wire.send(POD, segment(tcp_peers, flags))
    assert leaves_nothing(node_on_wire, tcp_peers)
    known = segment(tcp_peers, "A")
    node_on_wire.send(POD, known)
    assert len(node_on_wire.seen(POD, answer(known))) == 1
    assert node_on_wire.node.counter("dropped__unknown_connection") == 4


@pytest.mark.parametrize("flags", ["SF", "SR", "SFR", "SFPU"])
@pytest.mark.parametrize("closed", [False, True], ids=["unknown", "closed"])
def test_a_syn_with_fin_or_rst_opens_no_connection(
    node: Node, tcp_peers: Peers, flags: str, closed: bool
) -> None:
    """Netfilter calls such a packet invalid, and no listener answers it."""
    client, vip, backend = tcp_peers.served(node)
    if closed:
        tcp_peers.close(node, client, vip, backend, tcp_peers.connect(node, client, vip, backend))
    before = dict(node.pinned.map("connections").items()).keys()
    node.ingress(tcp(client, vip, flags))
    assert dict(node.pinned.map("connections").items()).keys() == before
    assert node.counter("connections_reopened") == 0


def test_a_client_that_may_not_connect_gets_no_answer(node_on_wire: Wire, tcp_peers: Peers) -> None:
    tcp_peers.service(node_on_wire.node, [tcp_peers.backend], ranges=[])
    node_on_wire.send(POD, segment(tcp_peers, "A"))
    assert leaves_nothing(node_on_wire, tcp_peers)
    assert node_on_wire.node.counter("dropped__unknown_connection") == 1


@contextmanager
def rules(links: Wire, peers: Peers, chain: str, rule: str) -> Iterator[None]:
    """Add one rule of netfilter to the node for the duration of the context."""
    table = f"table {'ip' if peers.family == 4 else 'ip6'} other"
    hook = {"prerouting": "-100", "postrouting": "100"}[chain]
    chains = f"chain one {{\n type nat hook {chain} priority {hook}\n {rule}\n}}"
    nft(links, f"{table} {{\n{chains}\n}}\n")
    try:
        yield
    finally:
        nft(links, f"delete {table}\n")


def test_what_another_program_translates_in_between_passes(
    node_on_wire: Wire, tcp_peers: Peers
) -> None:
    """Connections that kube-proxy made before stay with netfilter, to their end."""
    wanted = segment(tcp_peers, "PA", 10)
    wanted.dst, wanted.payload.dport = address_of(tcp_peers.backend), 8080
    family = "ip" if tcp_peers.family == 4 else "ip6"
    to_vip = f"{family} daddr {address_of(tcp_peers.vip)} tcp dport 80"
    with rules(node_on_wire, tcp_peers, "prerouting", f"{to_vip} dnat to {tcp_peers.backend}"):
        node_on_wire.send(POD, segment(tcp_peers, "PA", 10))
        assert len(node_on_wire.seen(UPLINK, hop(wanted))) == 1
    assert node_on_wire.node.counter("rejected__unknown_connection") == 0


def test_a_client_that_the_network_masquerades_gets_its_answer(
    node_on_wire: Wire, tcp_peers: Peers
) -> None:
    """The reset passes netfilter, which translates it back."""
    packet = segment(tcp_peers, "PA", 10, sport=40001)
    with rules(node_on_wire, tcp_peers, "postrouting", f"oifname {UPLINK} masquerade"):
        node_on_wire.send(POD, packet)
        assert len(node_on_wire.seen(POD, answer(packet))) == 1


def test_sctp_of_an_unknown_association_does_not_leave(
    node_on_wire: Wire, tcp_peers: Peers
) -> None:
    """As with netfilter, which does not translate it, and kube-proxy, which drops that."""
    node_on_wire.node.service(
        "sctp", [tcp_peers.backend], frontends=[tcp_peers.other_vip], protocol="SCTP"
    )
    node_on_wire.send(POD, sctp(tcp_peers.client, tcp_peers.other_vip))
    assert leaves_nothing(node_on_wire, tcp_peers)
    assert node_on_wire.node.counter("dropped__unknown_connection") == 1


def test_other_packets_from_the_middle_of_a_connection_pass(
    node_on_wire: Wire, tcp_peers: Peers
) -> None:
    """To an address that is no frontend, at the port of one."""
    packet = tcp(tcp_peers.client, tcp_peers.with_port(tcp_peers.backend, 80), "PA", b"data")
    node_on_wire.send(POD, packet)
    assert len(node_on_wire.seen(UPLINK, hop(packet))) == 1


def test_a_sender_that_must_not_be_answered_gets_no_reset(
    node_on_wire: Wire, tcp_peers: Peers
) -> None:
    """Its packet does not leave, either."""
    packet = segment(tcp_peers, "PA")
    packet.src = "240.0.0.9" if tcp_peers.family == 4 else "::9"
    node_on_wire.testbed.route(packet.src, POD)
    node_on_wire.send(POD, packet)
    assert leaves_nothing(node_on_wire, tcp_peers)
    assert node_on_wire.node.counter("dropped__reject_failed") == 1
    assert node_on_wire.node.counter("rejected__unknown_connection") == 0


@contextmanager
def tunnel(links: Wire) -> Iterator[End]:
    """Make an interface of the node without link headers, and attach its programs."""
    testbed, node = links.testbed, links.node
    with testbed.here.entered():
        device = os.open("/dev/net/tun", os.O_RDWR)
    try:
        fcntl.ioctl(device, _TUN_SET, struct.pack("16sH22x", b"l3", _TUN | _NO_HEADER))
        end = find(testbed.here, "l3")
        end.set(state="up")
        with testbed.here.entered():
            attacher = Attacher(node.root, "auto", 1)
            for hook in Hook:
                attacher.attach(end.index, hook, node.pinned.program(f"{hook}_l3"), "l3")
        yield end
    finally:
        os.close(device)


def test_what_would_leave_without_a_link_header_is_reset_too(
    node_on_wire: Wire, tcp_peers: Peers
) -> None:
    """The reset comes in by that interface, without one."""
    packet = segment(tcp_peers, "PA", 10)
    with tunnel(node_on_wire) as end:
        route = host_route(ipaddress.ip_address(packet.dst))
        add_route(node_on_wire.testbed.here, route, end, None)
        node_on_wire.testbed.forget_routes()
        node_on_wire.send(POD, packet)
        assert len(node_on_wire.seen(POD, answer(packet))) == 1
    assert node_on_wire.node.counter("rejected__unknown_connection") == 1
