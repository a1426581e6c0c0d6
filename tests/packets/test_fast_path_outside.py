"""The fast path of connections from outside to pods, through a NodePort: none of their packets may
meet netfilter, which has not seen them begin, and would masquerade the answers of pods.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import pytest
from scapy.layers.inet import IP, IPOption_NOP
from scapy.layers.inet6 import IPv6ExtHdrDestOpt
from scapy.packet import Packet

from bpfsvc.services.entries import Policies, Policy
from tests.packets.extension_headers import with_headers
from tests.packets.fast_path import WEB_PORT, FastPathTestbed, fast_packets, forwarded, hop
from tests.packets.fragment import PAYLOAD, cut
from tests.packets.icmp_errors import error
from tests.packets.node import REDIRECT
from tests.packets.packet import same, tcp
from tests.packets.peers import Peers, address_of


class Opened(NamedTuple):
    """An open connection: the ``entry`` that the client asked, and what the backend sees of it.

    ``by``: the interface towards the backend.
    """

    testbed: FastPathTestbed
    peers: Peers
    backend: str
    by: str
    entry: str
    seen: str

    def request(self, packet: Packet) -> Packet:
        """Send a packet of the client; return how the backend's side gets it."""
        if self.by == "eth0":
            return self.testbed.to_neighbour("eth0", packet)
        return self.testbed.to_peer("eth0", packet, to=self.by)

    def answer(self, packet: Packet) -> Packet:
        """Send a packet of the backend; return how the client gets it."""
        return self.testbed.to_neighbour(self.by, packet)


def open_by(testbed: FastPathTestbed, peers: Peers, where: str, **settings: int) -> Opened:
    """Connect a client outside to a backend: ``far``, ``near``, or ``near, local``.

    The last is not masqueraded (``externalTrafficPolicy: Local``).
    """
    near = where.startswith("near")
    backend, by = (peers.other_backend, "pod1") if near else (peers.backend, "eth0")
    client, entry = peers.external, peers.on_node(WEB_PORT)
    policy = Policy(0, 1, masquerade="local" not in where, reject=False)
    everyone = Policies(policy, policy, policy)
    testbed.node.settings(**({"fast_path": 1, "fast_outside": 1} | settings))
    peers.service(testbed.node, [backend], node_port=WEB_PORT, policies=everyone)
    testbed.forget_routes()
    if policy.masquerade:
        sent = testbed.to_neighbour("eth0", peers.opening(client, entry))
    else:
        sent = testbed.to_peer("eth0", peers.opening(client, entry), to=by)
    assert forwarded(sent, peers.opening(client, backend))
    seen = client
    if policy.masquerade:
        out = testbed.egress(by, sent)
        seen = peers.with_port(out.src, out.payload.sport)
        assert address_of(seen) == peers.node_address
        assert same(out, hop(peers.opening(seen, backend)))
    back = testbed.to_neighbour(by, peers.answer(backend, seen))
    assert same(testbed.egress("eth0", back), hop(peers.answer(entry, client)))
    comes, goes = peers.proof(client, entry, backend, seen)
    verdict, frame = testbed.run("ingress", "eth0", comes)
    assert verdict == REDIRECT
    if policy.masquerade:
        assert same(testbed.egress(by, frame.payload), hop(goes))
    return Opened(testbed, peers, backend, by, entry, seen)


EVERYWHERE = pytest.mark.parametrize("where", ["far", "near", "near, local"])


@EVERYWHERE
def test_every_packet_from_outside_and_back_is_fast(
    testbed: FastPathTestbed, fast_peers: Peers, where: str
) -> None:
    opened = open_by(testbed, fast_peers, where)
    client = fast_peers.external
    before = fast_packets(testbed)
    for payload in (b"a", b"bc", b"d" * 1400):
        sent = opened.request(fast_peers.data(client, opened.entry, payload))
        assert forwarded(sent, fast_peers.data(opened.seen, opened.backend, payload))
        back = opened.answer(fast_peers.data(opened.backend, opened.seen, payload))
        assert forwarded(back, fast_peers.data(opened.entry, client, payload))
    assert fast_packets(testbed) - before == 6


@EVERYWHERE
def test_a_packet_with_a_longer_header_is_fast_too(
    testbed: FastPathTestbed, fast_peers: Peers, where: str
) -> None:
    """The stack would begin a connection of netfilter's with it."""
    opened = open_by(testbed, fast_peers, where)
    client, entry, seen = fast_peers.external, opened.entry, opened.seen
    request = _with_options(fast_peers.data(client, entry))
    sent = testbed.to_neighbour("eth0", request)
    wanted = _with_options(fast_peers.data(seen, opened.backend))
    assert same(testbed.egress(opened.by, sent), hop(wanted))
    answer = _with_options(fast_peers.data(opened.backend, seen))
    back = testbed.to_neighbour(opened.by, answer)
    assert same(testbed.egress("eth0", back), hop(_with_options(fast_peers.data(entry, client))))


def _with_options(packet: Packet) -> Packet:
    if isinstance(packet, IP):
        packet = packet.copy()
        packet.options = [IPOption_NOP()] * 4
        return packet
    return with_headers(packet, IPv6ExtHdrDestOpt())


@EVERYWHERE
def test_fragments_are_fast_too(udp_testbed: FastPathTestbed, udp_peers: Peers, where: str) -> None:
    opened = open_by(udp_testbed, udp_peers, where)
    client, entry, seen, backend = udp_peers.external, opened.entry, opened.seen, opened.backend
    ways = (
        ("eth0", opened.by, (client, entry), (seen, backend)),
        (opened.by, "eth0", (backend, seen), (entry, client)),
    )
    for comes_by, leaves_by, before, after in ways:
        # The first fragment has the checksum of all, so it is computed before they are cut.
        whole, wanted = (_computed(udp_peers.data(*ends, PAYLOAD)) for ends in (before, after))
        for fragment, translated in zip(cut(whole), cut(wanted), strict=True):
            sent = udp_testbed.to_neighbour(comes_by, fragment)
            if isinstance(translated, IP):
                del translated.chksum  # of the header, to be computed after its last hop
            assert same(udp_testbed.egress(leaves_by, sent), hop(translated))


def _computed(packet: Packet) -> Packet:
    return type(packet)(bytes(packet))


@EVERYWHERE
def test_a_packet_whose_hops_end_is_left_to_the_stack(
    testbed: FastPathTestbed, fast_peers: Peers, where: str
) -> None:
    """It answers before netfilter could masquerade anything."""
    opened = open_by(testbed, fast_peers, where)
    testbed.to_stack("eth0", hop(fast_peers.data(fast_peers.external, opened.entry), 1))
    testbed.to_stack(opened.by, hop(fast_peers.data(opened.backend, opened.seen), 1))


SPARED: dict[str, Callable[[FastPathTestbed], None]] = {
    "new ones take the stack": lambda bed: bed.node.settings(fast_path=0, fast_outside=1),
    "the middle of new ones is fast": lambda bed: bed.node.settings(
        fast_path=0, established=1, fast_outside=1
    ),
    "an older build is copied": lambda bed: bed.node.settings(
        fast_path=0, fast_outside=1, takeover=1
    ),
}
LEVELS: dict[str, Callable[[FastPathTestbed], None]] = {"all is fast": lambda _: None, **SPARED}


@EVERYWHERE
@pytest.mark.parametrize("why", SPARED)
def test_a_connection_stays_fast_while(
    testbed: FastPathTestbed, fast_peers: Peers, where: str, why: str
) -> None:
    opened = open_by(testbed, fast_peers, where)
    client = fast_peers.external
    SPARED[why](testbed)
    sent = opened.request(fast_peers.data(client, opened.entry))
    assert forwarded(sent, fast_peers.data(opened.seen, opened.backend))
    back = opened.answer(fast_peers.data(opened.backend, opened.seen))
    assert forwarded(back, fast_peers.data(opened.entry, client))


@EVERYWHERE
def test_when_the_fast_path_ends_the_stack_serves_the_connection(
    testbed: FastPathTestbed, fast_peers: Peers, where: str
) -> None:
    opened = open_by(testbed, fast_peers, where)
    client, backend = fast_peers.external, opened.backend
    testbed.node.settings(fast_path=0, fast_outside=0)
    sent = testbed.to_stack("eth0", fast_peers.data(client, opened.entry))
    assert same(sent, fast_peers.data(client, backend))
    assert same(testbed.egress(opened.by, sent), fast_peers.data(opened.seen, backend))
    back = testbed.to_stack(opened.by, fast_peers.data(backend, opened.seen))
    assert same(testbed.egress("eth0", back), fast_peers.data(opened.entry, client))


@pytest.mark.parametrize("allowed", ["fast_path", "fast_outside"])
def test_a_new_connection_needs_both_settings(
    testbed: FastPathTestbed, fast_peers: Peers, allowed: str
) -> None:
    client, entry = fast_peers.external, fast_peers.on_node(WEB_PORT)
    fast_peers.service(testbed.node, [fast_peers.backend], node_port=WEB_PORT)
    testbed.node.settings(**{allowed: 1})
    testbed.to_stack("eth0", fast_peers.opening(client, entry))


def test_a_connection_stays_with_the_stack_if_it_began_there(
    testbed: FastPathTestbed, fast_peers: Peers
) -> None:
    """Netfilter knows it, and may have masqueraded it."""
    client, entry = fast_peers.external, fast_peers.on_node(WEB_PORT)
    fast_peers.service(testbed.node, [fast_peers.backend], node_port=WEB_PORT)
    testbed.to_stack("eth0", fast_peers.opening(client, entry))
    testbed.node.settings(fast_path=1, fast_outside=1)
    testbed.to_stack("eth0", fast_peers.data(client, entry))


@EVERYWHERE
@pytest.mark.parametrize("why", LEVELS)
def test_an_error_about_an_answer_is_fast(
    testbed: FastPathTestbed, fast_peers: Peers, where: str, why: str
) -> None:
    """A router asks for shorter packets: the pod has to learn of it."""
    opened = open_by(testbed, fast_peers, where)
    LEVELS[why](testbed)
    client, entry = fast_peers.external, opened.entry
    comes = error(fast_peers.router, fast_peers.node_address, fast_peers.data(entry, client))
    sent = testbed.to_neighbour("eth0", comes)
    about = fast_peers.data(opened.backend, opened.seen)
    wanted = error(fast_peers.router, address_of(opened.backend), about)
    assert same(testbed.egress(opened.by, sent), hop(wanted))


@EVERYWHERE
@pytest.mark.parametrize("why", LEVELS)
def test_an_error_of_the_pod_is_fast(
    testbed: FastPathTestbed, fast_peers: Peers, where: str, why: str
) -> None:
    opened = open_by(testbed, fast_peers, where)
    LEVELS[why](testbed)
    seen, backend = opened.seen, opened.backend
    about = fast_peers.data(seen, backend)
    comes = error(address_of(backend), address_of(seen), about)
    sent = testbed.to_neighbour(opened.by, comes)
    client, entry = fast_peers.external, opened.entry
    wanted = error(address_of(entry), address_of(client), fast_peers.data(client, entry))
    assert same(testbed.egress("eth0", sent), hop(wanted))


def test_answers_leave_by_the_interface_that_requests_come_by_or_by_the_stack(
    testbed: FastPathTestbed, fast_peers: Peers
) -> None:
    """Else a reverse path filter may have to drop the requests."""
    opened = open_by(testbed, fast_peers, "near")
    request = fast_peers.data(fast_peers.external, opened.entry)
    testbed.to_stack("pod0", request)


@pytest.mark.parametrize("where", ["far", "near"])
def test_a_masqueraded_connection_stays_on_the_fast_path_when_its_syn_is_sent_again(
    tcp_testbed: FastPathTestbed, tcp_peers: Peers, where: str
) -> None:
    """Its answers come to an address of the node, so by no bridge past the programs."""
    testbed, peers = tcp_testbed, tcp_peers
    backend = peers.other_backend if where == "near" else peers.backend
    policy = Policy(0, 1, masquerade=True, reject=False)
    testbed.node.settings(fast_path=1, fast_outside=1)
    everyone = Policies(policy, policy, policy)
    peers.service(testbed.node, [backend], node_port=WEB_PORT, policies=everyone)
    testbed.forget_routes()
    opening = peers.opening(peers.external, peers.on_node(WEB_PORT))
    for _ in range(3):
        sent = testbed.to_neighbour("eth0", opening)
        assert forwarded(sent, peers.opening(peers.external, backend))
        testbed.node.age(2)


def test_a_connection_between_pods_stays_on_the_fast_path_when_its_syn_is_sent_again(
    tcp_testbed: FastPathTestbed, tcp_peers: Peers
) -> None:
    """Netfilter masquerades no answer of it, whichever way answers take."""
    client, vip, backend = tcp_peers.served(tcp_testbed.node)
    for _ in range(3):
        sent = tcp_testbed.to_neighbour("pod0", tcp_peers.opening(client, vip))
        assert forwarded(sent, tcp_peers.opening(client, backend))
        tcp_testbed.node.age(2)


def test_a_client_that_gives_up_without_an_answer_does_so_by_the_way_of_its_syn(
    tcp_testbed: FastPathTestbed, tcp_peers: Peers
) -> None:
    """Only a SYN that comes again shows that answers take the stack."""
    testbed, peers = tcp_testbed, tcp_peers
    client, entry, pod = peers.external, peers.on_node(WEB_PORT), peers.other_backend
    testbed.node.settings(fast_path=1, fast_outside=1)
    peers.service(testbed.node, [pod], node_port=WEB_PORT)
    testbed.forget_routes()
    for flags in ("S", "R"):
        sent = testbed.to_peer("eth0", tcp(client, entry, flags), to="pod1")
        assert forwarded(sent, tcp(client, pod, flags))
        testbed.node.age(2)
