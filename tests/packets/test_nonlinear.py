"""Packets whose headers are not in the linear part of the kernel's buffer, but in pages behind it.

Drivers and sockets make such buffers of large packets. A program reads those headers by a helper.
"""

from __future__ import annotations

import socket
import struct
from collections.abc import Iterator

import pytest
from scapy.layers.inet6 import IPv6ExtHdrDestOpt, PadN
from scapy.layers.l2 import Ether
from scapy.packet import Packet, Raw

from bpfsvc.devtools.lab.patience import stretched
from tests.packets.extension_headers import with_headers
from tests.packets.fast_path import hop, prepare
from tests.packets.icmp_errors import KINDS, error
from tests.packets.node import Node
from tests.packets.packet import LINK
from tests.packets.peers import ALL_PEERS, TCP_PEERS, UDP_PEERS, Peers, address_of
from tests.packets.refusals import unreachable
from tests.packets.test_echo import ECHO, ping, pong
from tests.packets.test_icmp_errors import redirect
from tests.packets.test_unknown_connections import answer, segment
from tests.packets.wire import POD, UPLINK, Wire, wire

MTU = 9000

LARGE = bytes(number & 0xFF for number in range(5000))
"""Data for a packet: smaller ones are made linear by the kernel."""

_VIRTIO_HEADER = struct.Struct("=BBHHHH")
"""``struct virtio_net_hdr``, with the length of the linear part."""

_SOL_PACKET, _PACKET_VNET_HDR, _ALL_PROTOCOLS = 263, 15, 3


class Pages:
    """Sends packets whose linear part is the Ethernet header alone."""

    def __init__(self, links: Wire) -> None:
        self.links, self.node, self.testbed = links, links.node, links.testbed
        self._ends: dict[str, socket.socket] = {}
        for name in (POD, UPLINK):
            with self.testbed.there.entered():
                end = socket.socket(socket.AF_PACKET, socket.SOCK_RAW)
                end.bind((name, _ALL_PROTOCOLS))
            end.setsockopt(_SOL_PACKET, _PACKET_VNET_HDR, 1)
            end.settimeout(stretched(10))
            self._ends[name] = end
            for namespace in (self.testbed.here, self.testbed.there):
                namespace.run(["ip", "link", "set", name, "mtu", str(MTU)])

    def send(self, name: str, packet: Packet) -> None:
        """Send a packet to the node by a link."""
        link = Ether(src=self.testbed.far[name], dst=self.testbed.ends[name].mac)
        frame = bytes(link / packet)
        self._ends[name].send(_VIRTIO_HEADER.pack(0, 0, len(link), 0, 0, 0) + frame)

    def crosses(self, name: str, packet: Packet, to: str, wanted: Packet) -> None:
        """Send a packet by a link; assert that ``wanted`` leaves by another one, to the last byte.

        Of two packets to the node, one of which is not large, the other is sent as it is.
        """
        self.send(name, packet)
        seen: list[bytes] = []
        while bytes(wanted) not in seen:
            try:
                data, (_, _, kind, *_) = self._ends[to].recvfrom(1 << 16)
            except TimeoutError:
                texts = [bytes(one[:60]).hex() for one in seen]
                raise AssertionError(f"not seen: {wanted.summary()}; but {texts}") from None
            if kind != socket.PACKET_OUTGOING:
                seen.append(data[_VIRTIO_HEADER.size + len(LINK) :])

    def close(self) -> None:
        for end in self._ends.values():
            end.close()


@pytest.fixture(scope="module")
def links(loaded: Node) -> Iterator[Pages]:
    with wire(loaded) as made:
        pages = Pages(made)
        yield pages
        pages.close()


@pytest.fixture(params=[False, True], ids=["stack", "fast path"])
def fast(request: pytest.FixtureRequest) -> bool:
    return bool(request.param)


@pytest.fixture
def pages(links: Pages, node: Node) -> Pages:
    assert links.node is node
    return links


def ready(pages: Pages, peers: Peers, *, fast: bool) -> None:
    """Route all peers, with the fast path or without."""
    prepare(pages.testbed, peers)
    router = "192.168.50.12" if peers.family == 4 else "fd50::12"
    for address in (peers.vip, peers.other_vip):
        pages.testbed.route(address, UPLINK, router)
    pages.node.settings(fast_path=fast)
    pages.links.clear()


def large(packet: Packet) -> Packet:
    """Return a packet of TCP or UDP with much data."""
    packet = packet.copy()
    packet.payload.remove_payload()
    packet.payload.add_payload(Raw(LARGE))
    return packet


@pytest.mark.parametrize("peers", ALL_PEERS, ids=str)
def test_a_connection_is_translated_from_its_first_packet_on(
    pages: Pages, peers: Peers, fast: bool
) -> None:
    """The first packet of SCTP has no data."""
    ready(pages, peers, fast=fast)
    client, vip, backend = peers.served(pages.node)
    first = peers.opening(client, vip), peers.opening(client, backend)
    back = peers.answer(backend, client), peers.answer(vip, client)
    if peers.protocol != "SCTP":
        first, back = (large(first[0]), large(first[1])), (large(back[0]), large(back[1]))
    pages.crosses(POD, first[0], UPLINK, hop(first[1]))
    pages.crosses(UPLINK, back[0], POD, hop(back[1]))
    for _ in range(2):
        there = peers.data(client, vip, LARGE), peers.data(client, backend, LARGE)
        pages.crosses(POD, there[0], UPLINK, hop(there[1]))
        back = peers.data(backend, client, LARGE), peers.data(vip, client, LARGE)
        pages.crosses(UPLINK, back[0], POD, hop(back[1]))


@pytest.mark.parametrize("peers", TCP_PEERS + UDP_PEERS, ids=str)
def test_a_direct_flow_stays_as_it_is(pages: Pages, peers: Peers, fast: bool) -> None:
    ready(pages, peers, fast=fast)
    client, _, backend = peers.served(pages.node)
    for packet in (peers.opening, peers.data, peers.data):
        there = large(packet(client, backend))
        pages.crosses(POD, there, UPLINK, hop(there))
        back = large((peers.answer if packet == peers.opening else packet)(backend, client))
        pages.crosses(UPLINK, back, POD, hop(back))


def test_the_middle_of_an_unknown_connection_is_reset(pages: Pages, tcp_peers: Peers) -> None:
    ready(pages, tcp_peers, fast=False)
    tcp_peers.served(pages.node)
    packet = segment(tcp_peers, "PA", len(LARGE))
    pages.crosses(POD, packet, POD, answer(packet))
    assert pages.node.counter("rejected__unknown_connection") == 1


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("peers", TCP_PEERS + UDP_PEERS, ids=str)
def test_an_error_about_a_translated_packet_reaches_the_client(
    pages: Pages, peers: Peers, kind: str, fast: bool
) -> None:
    """It quotes all of a large packet; that of IPv6 comes from the backend."""
    ready(pages, peers, fast=fast)
    client, vip, backend = peers.served(pages.node)
    pages.crosses(POD, peers.opening(client, vip), UPLINK, hop(peers.opening(client, backend)))
    about = [large(peers.data(client, to)) for to in (backend, vip)]
    ends = [address_of(text) for text in (backend, client, vip)]
    arrives = error(ends[0], ends[1], about[0], kind)
    pages.crosses(UPLINK, arrives, POD, hop(error(ends[2], ends[1], about[1], kind)))


def test_an_error_about_another_packet_stays_as_it_is(
    pages: Pages, tcp_peers: Peers, fast: bool
) -> None:
    ready(pages, tcp_peers, fast=fast)
    client, _, backend = tcp_peers.served(pages.node)
    about = large(tcp_peers.data(client, backend))
    arrives = error(address_of(backend), address_of(client), about)
    pages.crosses(UPLINK, arrives, POD, hop(arrives))


def test_a_datagram_whose_ports_are_behind_what_would_be_quoted_is_dropped(pages: Pages) -> None:
    """A packet of this machine says where they are, and the kernel cuts none before them."""
    peers = UDP_PEERS[1]
    ready(pages, peers, fast=False)
    peers.service(pages.node, [])
    asks = large(peers.opening(peers.client, peers.vip))
    pages.send(POD, with_headers(asks, IPv6ExtHdrDestOpt(options=[PadN(optdata=bytes(120))])))
    pages.crosses(POD, asks, POD, unreachable(asks))
    assert pages.node.counter("dropped__reject_failed") == 1


def test_a_ping_to_the_address_of_a_service_is_answered(pages: Pages, tcp_peers: Peers) -> None:
    ready(pages, tcp_peers, fast=False)
    tcp_peers.served(pages.node, policies=ECHO, guarded=True)
    asks = ping(address_of(tcp_peers.client), address_of(tcp_peers.vip), LARGE)
    pages.crosses(POD, asks, POD, pong(asks, LARGE))


@pytest.mark.parametrize("with_link", [False, True], ids=["", "with link address"])
def test_a_redirect_about_a_translated_packet_is_dropped(
    pages: Pages, tcp_peers: Peers, with_link: bool
) -> None:
    """That about another packet arrives."""
    ready(pages, tcp_peers, fast=False)
    client, vip, backend = tcp_peers.served(pages.node)
    routed = tcp_peers.opening(client, backend)
    pages.crosses(POD, tcp_peers.opening(client, vip), UPLINK, hop(routed))
    ends = address_of(backend), address_of(client)
    dropped, arrives = (
        redirect(*ends, tcp_peers.data(source, backend), tcp_peers.router, with_link=with_link)
        / Raw(LARGE)
        for source in (client, tcp_peers.with_port(client, 41000))
    )
    pages.send(UPLINK, dropped)
    pages.crosses(UPLINK, arrives, POD, hop(arrives))
    assert pages.node.counter("dropped__redirects") == 1
