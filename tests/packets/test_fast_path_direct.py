"""The fast path for what pods send each other directly: no Service, no translation.

As on the node of a client whose sockets are translated, and on that of each backend.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import pytest
from scapy.packet import Packet

from tests.packets.fast_path import FastPathTestbed, fast_packets, forwarded, hop
from tests.packets.icmp_errors import error
from tests.packets.node import REDIRECT, UNSPEC
from tests.packets.packet import same, tcp
from tests.packets.peers import Peers, address_of
from tests.packets.test_fast_path import SLOW_PACKETS
from tests.packets.test_fast_path_choice import unguarded
from tests.packets.whole_seconds import within_a_second


def conversation(peers: Peers, client: str, server: str) -> list[tuple[bool, Packet]]:
    """Return all packets of a connection, each after whether the client sends it."""
    if peers.protocol != "TCP":
        return [
            (True, peers.data(client, server)),
            (False, peers.data(server, client)),
            (True, peers.data(client, server)),
        ]
    return [
        (True, tcp(client, server, "S")),
        (False, tcp(server, client, "SA")),
        (True, tcp(client, server, "A")),
        (True, tcp(client, server, "PA", b"question")),
        (False, tcp(server, client, "PA", b"answer")),
        (False, tcp(server, client, "FA")),
        (True, tcp(client, server, "FA")),
        (False, tcp(server, client, "A")),
        (False, tcp(server, client, "R")),
    ]


def open_direct(testbed: FastPathTestbed, peers: Peers) -> None:
    """Have the client and the backend, which is on another node, exchange first packets."""
    client, backend = peers.client, peers.backend
    testbed.run("ingress", "pod0", peers.opening(client, backend))
    testbed.run("ingress", "eth0", peers.answer(backend, client))


def begin_and_end(testbed: FastPathTestbed, peers: Peers) -> None:
    """Have the client and the backend exchange a whole connection, on the fast path."""
    for sent, packet in conversation(peers, peers.client, peers.backend)[:-1]:
        assert testbed.run("ingress", "pod0" if sent else "eth0", packet)[0] == REDIRECT


@pytest.fixture(params=["a backend", "no backend"])
def server(request: pytest.FixtureRequest, testbed: FastPathTestbed, fast_peers: Peers) -> str:
    """Return the server: pods that are backends take more steps in the programs."""
    if request.param == "a backend":
        fast_peers.service(testbed.node, [fast_peers.backend])
    return fast_peers.backend


def test_every_packet_between_pods_of_two_nodes_is_fast(
    testbed: FastPathTestbed, fast_peers: Peers, server: str
) -> None:
    """Out to the neighbour, and in directly to the pod.

    A datagram to no endpoint may be the answer to another one, which netfilter has translated. So
    the first one takes the stack.
    """
    packets = conversation(fast_peers, fast_peers.client, server)
    if fast_peers.protocol == "UDP" and not testbed.node.count("endpoints"):
        testbed.to_stack("pod0", packets.pop(0)[1])
    for sent, packet in packets:
        if sent:
            got = testbed.to_neighbour("pod0", packet)
        else:
            got = testbed.to_peer("eth0", packet, to="pod0")
        assert forwarded(got, packet)
    assert fast_packets(testbed) == len(packets)


def test_every_packet_between_pods_of_one_node_is_fast(
    testbed: FastPathTestbed, fast_peers: Peers
) -> None:
    fast_peers.service(testbed.node, [fast_peers.other_backend])
    packets = conversation(fast_peers, fast_peers.client, fast_peers.other_backend)
    for sent, packet in packets:
        came, goes = ("pod0", "pod1") if sent else ("pod1", "pod0")
        assert forwarded(testbed.to_peer(came, packet, to=goes), packet)


def test_what_begins_between_pods_without_a_guard_takes_the_stack(
    testbed: FastPathTestbed, fast_peers: Peers, server: str
) -> None:
    """Also a flow in the place of one that was fast; and all of it, when there is a guard again."""
    packets = conversation(fast_peers, fast_peers.client, server)
    if fast_peers.protocol == "TCP":
        open_direct(testbed, fast_peers)
    before = fast_packets(testbed)
    unguarded(testbed)
    for sent, packet in packets:
        testbed.to_stack("pod0" if sent else "eth0", packet)
    if fast_peers.protocol == "TCP":
        testbed.node.settings(fast_path=1)
        for sent, packet in packets[1:]:
            testbed.to_stack("pod0" if sent else "eth0", packet)
    assert fast_packets(testbed) == before


def test_what_has_begun_between_pods_stays_fast_without_a_guard(
    testbed: FastPathTestbed, fast_peers: Peers, server: str
) -> None:
    open_direct(testbed, fast_peers)
    unguarded(testbed)
    packet = fast_peers.data(fast_peers.client, server)
    assert forwarded(testbed.to_neighbour("pod0", packet), packet)


def test_what_a_client_outside_the_pods_range_sends_takes_the_stack(
    testbed: FastPathTestbed, fast_peers: Peers
) -> None:
    """Netfilter may have masqueraded the connection, and has to know all of it."""
    for sent, packet in conversation(fast_peers, fast_peers.external, fast_peers.client):
        assert same(testbed.to_stack("eth0" if sent else "pod0", packet), packet)
    for sent, packet in conversation(fast_peers, fast_peers.client, fast_peers.external):
        assert same(testbed.to_stack("pod0" if sent else "eth0", packet), packet)
    assert fast_packets(testbed) == 0


def test_a_pod_that_uses_the_address_of_another_is_left_to_the_reverse_path_filter(
    testbed: FastPathTestbed, fast_peers: Peers
) -> None:
    open_direct(testbed, fast_peers)
    packet = fast_peers.data(fast_peers.client, fast_peers.backend)
    assert same(testbed.to_stack("pod1", packet), packet)
    packet = fast_peers.data(fast_peers.backend, fast_peers.client)
    assert same(testbed.to_stack("pod1", packet), packet)


@pytest.mark.parametrize("name", ["pod0", "eth0"])
def test_what_passes_an_excluded_interface_takes_the_stack(
    testbed: FastPathTestbed, fast_peers: Peers, name: str
) -> None:
    """A program of others may be attached to it, and has to see the packets."""
    open_direct(testbed, fast_peers)
    testbed.write_interface(name, shortcut=False)
    for sent, packet in conversation(fast_peers, fast_peers.client, fast_peers.backend):
        assert same(testbed.to_stack("pod0" if sent else "eth0", packet), packet)


@pytest.mark.parametrize("kind", SLOW_PACKETS)
def test_a_packet_that_the_stack_must_see_passes_unchanged(
    testbed: FastPathTestbed, fast_peers: Peers, kind: str
) -> None:
    """In the middle of a fast connection; what follows is fast again."""
    open_direct(testbed, fast_peers)
    plain = fast_peers.data(fast_peers.client, fast_peers.backend)
    back = fast_peers.data(fast_peers.backend, fast_peers.client)
    change: Callable[[Packet], Packet] = SLOW_PACKETS[kind]
    for _ in range(2):
        assert forwarded(testbed.to_neighbour("pod0", plain), plain)
        assert forwarded(testbed.to_peer("eth0", back, to="pod0"), back)
        assert same(testbed.to_stack("pod0", change(plain)), change(plain))
        assert same(testbed.to_stack("eth0", change(back)), change(back))


def test_a_frame_for_another_machine_is_not_forwarded(
    testbed: FastPathTestbed, fast_peers: Peers
) -> None:
    open_direct(testbed, fast_peers)
    packet = fast_peers.data(fast_peers.client, fast_peers.backend)
    verdict, frame = testbed.run("ingress", "pod0", packet, to="02:00:00:00:00:99")
    assert verdict == UNSPEC
    assert same(frame.payload, packet)


def test_errors_about_fast_packets_are_fast(testbed: FastPathTestbed, fast_peers: Peers) -> None:
    """Conntrack has seen nothing of the connection, and rules may drop what it finds invalid."""
    open_direct(testbed, fast_peers)
    quoted = fast_peers.data(fast_peers.client, fast_peers.backend)
    for source in (fast_peers.router, address_of(fast_peers.backend)):
        packet = error(source, address_of(fast_peers.client), quoted)
        assert forwarded(testbed.to_neighbour("eth0", packet), packet)


def test_errors_about_flows_that_are_not_fast_take_the_stack(
    testbed: FastPathTestbed, fast_peers: Peers
) -> None:
    """Netfilter may have translated what they quote (a hostPort), and has to translate it back."""
    quoted = fast_peers.data(fast_peers.client, fast_peers.other_backend)
    for source in (fast_peers.router, address_of(fast_peers.other_backend)):
        packet = error(source, address_of(fast_peers.client), quoted, "port unreachable")
        assert same(testbed.to_stack("pod1", packet), packet)


def test_errors_about_other_packets_take_the_stack(
    testbed: FastPathTestbed, fast_peers: Peers
) -> None:
    quoted = fast_peers.data(fast_peers.client, fast_peers.external)
    packet = error(fast_peers.router, address_of(fast_peers.client), quoted)
    assert same(testbed.to_stack("eth0", packet), packet)


def test_without_a_range_of_pods_nothing_direct_is_fast(
    testbed: FastPathTestbed, fast_peers: Peers
) -> None:
    testbed.node.settings(fast_path=1, detect_pods_v4=0, detect_pods_v6=0)
    for sent, packet in conversation(fast_peers, fast_peers.client, fast_peers.backend):
        assert same(testbed.to_stack("pod0" if sent else "eth0", packet), packet)


def test_a_connection_through_a_service_may_have_the_ports_of_an_older_direct_one(
    tcp_testbed: FastPathTestbed, tcp_peers: Peers
) -> None:
    """Its answers are translated: the flow that was fast as it is, is forgotten."""
    peers, client, backend, vip = tcp_peers, tcp_peers.client, tcp_peers.backend, tcp_peers.vip
    peers.service(tcp_testbed.node, [backend])
    begin_and_end(tcp_testbed, peers)
    tcp_testbed.node.age_direct(5)
    tcp_testbed.to_neighbour("pod0", peers.opening(client, vip))
    back = tcp_testbed.to_neighbour("eth0", peers.answer(backend, client))
    assert same(tcp_testbed.egress("pod0", back), hop(peers.answer(vip, client)))
    tcp_testbed.to_neighbour("pod0", tcp(client, vip, "A"))
    for flags in ("A", "PA", "FA"):
        back = tcp_testbed.to_peer("eth0", tcp(backend, client, flags), to="pod0")
        assert forwarded(back, tcp(vip, client, flags))


def test_a_direct_connection_with_the_ports_of_one_through_a_service_gets_another_port(
    tcp_testbed: FastPathTestbed, tcp_peers: Peers
) -> None:
    """Also if there was one with these ports before: then the programs look for no other."""
    peers, client, backend, vip = tcp_peers, tcp_peers.client, tcp_peers.backend, tcp_peers.vip
    peers.service(tcp_testbed.node, [backend])
    begin_and_end(tcp_testbed, peers)
    tcp_testbed.node.age_direct(5)
    tcp_testbed.to_neighbour("pod0", peers.opening(client, vip))
    tcp_testbed.to_neighbour("eth0", peers.answer(backend, client))
    _, frame = tcp_testbed.run("ingress", "pod0", peers.opening(client, backend))
    changed = frame.payload.payload
    assert changed.dport == peers.opening(client, backend).dport
    assert changed.sport != peers.opening(client, backend).sport


def test_a_connection_with_the_ports_of_one_that_has_ended_is_fast_as_that_was(
    tcp_testbed: FastPathTestbed, tcp_peers: Peers
) -> None:
    for _ in range(2):
        begin_and_end(tcp_testbed, tcp_peers)


def test_an_address_that_becomes_a_frontend_is_translated_from_the_next_connection_on(
    tcp_testbed: FastPathTestbed, tcp_peers: Peers
) -> None:
    """It is in the range of pods, as where pods and load balancers share a network.

    The SYN that was sent before is repeated, with the same ports.
    """
    peers, client, backend = tcp_peers, tcp_peers.client, tcp_peers.backend
    vip = peers.with_port(address_of(backend)[:-1] + "9", 80)
    tcp_testbed.route(vip, "eth0", "192.168.50.12" if peers.family == 4 else "fd50::12")
    syn = peers.opening(client, vip)
    assert forwarded(tcp_testbed.to_neighbour("pod0", syn), syn)
    peers.service(tcp_testbed.node, [backend], frontends=[vip])
    assert forwarded(tcp_testbed.to_neighbour("pod0", syn), peers.opening(client, backend))
    tcp_testbed.to_neighbour("eth0", peers.answer(backend, client))
    for flags in ("A", "PA", "FA"):
        sent = tcp_testbed.to_neighbour("pod0", tcp(client, vip, flags))
        assert forwarded(sent, tcp(client, backend, flags))


@pytest.mark.parametrize("older", ["no older flow", "an older flow with the same ports"])
def test_answers_of_a_connection_that_netfilter_translates_take_the_stack(
    tcp_testbed: FastPathTestbed, tcp_peers: Peers, older: str
) -> None:
    """As by a hostPort: its requests go to an address of the node, its answers look direct."""
    client, backend = tcp_peers.client, tcp_peers.other_backend
    if older.startswith("an"):
        for sent, packet in conversation(tcp_peers, client, backend)[:-1]:
            assert tcp_testbed.run("ingress", "pod0" if sent else "pod1", packet)[0] == REDIRECT
    request = tcp(client, tcp_peers.on_node(8088), "S")
    assert same(tcp_testbed.to_stack("pod0", request), request)
    for flags in ("SA", "A", "PA", "FA"):
        packet = tcp(backend, client, flags)
        assert same(tcp_testbed.to_stack("pod1", packet), packet)


@pytest.mark.parametrize("client_is", ["no endpoint", "an endpoint"])
def test_answers_to_datagrams_that_netfilter_translates_take_the_stack(
    udp_testbed: FastPathTestbed, udp_peers: Peers, client_is: str
) -> None:
    """All members of a cluster may use one port, and one is asked by a hostPort."""
    if client_is == "an endpoint":
        udp_peers.service(udp_testbed.node, [udp_peers.client, udp_peers.other_backend])
    for _ in range(3):
        request = udp_peers.data(udp_peers.client, udp_peers.on_node(8088))
        assert same(udp_testbed.to_stack("pod0", request), request)
        answer = udp_peers.data(udp_peers.other_backend, udp_peers.client)
        assert same(udp_testbed.to_stack("pod1", answer), answer)


def test_datagrams_between_two_endpoints_are_fast_as_soon_as_both_have_sent_one(
    udp_testbed: FastPathTestbed, udp_peers: Peers
) -> None:
    udp_peers.service(udp_testbed.node, [udp_peers.client, udp_peers.other_backend])
    there = udp_peers.data(udp_peers.client, udp_peers.other_backend)
    back = udp_peers.data(udp_peers.other_backend, udp_peers.client)
    assert same(udp_testbed.to_stack("pod0", there), there)
    for _ in range(2):
        assert forwarded(udp_testbed.to_peer("pod1", back, to="pod0"), back)
        assert forwarded(udp_testbed.to_peer("pod0", there, to="pod1"), there)


def test_datagrams_are_fast_until_both_ends_are_silent_for_longer_than_conntrack_remembers(
    udp_testbed: FastPathTestbed, udp_peers: Peers
) -> None:
    """Then the flow begins again: netfilter may translate it this time."""
    udp_peers.service(udp_testbed.node, [udp_peers.client, udp_peers.other_backend])
    there = udp_peers.data(udp_peers.client, udp_peers.other_backend)
    back = udp_peers.data(udp_peers.other_backend, udp_peers.client)
    udp_testbed.to_stack("pod0", there)
    udp_testbed.to_peer("pod1", back, to="pod0")
    udp_testbed.node.age_direct(29)
    udp_testbed.to_peer("pod0", there, to="pod1")
    udp_testbed.node.age_direct(31)
    for _ in range(2):
        assert same(udp_testbed.to_stack("pod0", there), there)
    udp_testbed.to_peer("pod1", back, to="pod0")


def test_a_connection_whose_beginning_was_not_seen_takes_the_stack(
    tcp_testbed: FastPathTestbed, tcp_peers: Peers
) -> None:
    """It is older than the fast path, and conntrack knows it."""
    for sent, packet in conversation(tcp_peers, tcp_peers.client, tcp_peers.backend)[1:]:
        assert same(tcp_testbed.to_stack("pod0" if sent else "eth0", packet), packet)


def test_a_syn_that_is_sent_again_without_an_answer_takes_the_stack_with_all_that_follows(
    tcp_testbed: FastPathTestbed, tcp_peers: Peers
) -> None:
    """Answers may come by a port of a bridge that has no programs yet, and by netfilter then."""
    client, backend = tcp_peers.client, tcp_peers.backend
    syn = tcp(client, backend)
    assert forwarded(tcp_testbed.to_neighbour("pod0", syn), syn)

    def again(seconds: int) -> None:
        tcp_testbed.node.age_direct(seconds)
        tcp_testbed.to_stack("pod0", syn)

    for seconds in (1, 3, 60):
        within_a_second(partial(again, seconds))
    tcp_testbed.to_stack("eth0", tcp(backend, client, "SA"))
    for flags in ("A", "PA"):
        tcp_testbed.to_stack("pod0", tcp(client, backend, flags))
        tcp_testbed.to_stack("eth0", tcp(backend, client, flags))


@pytest.mark.parametrize("seconds", [0, 61], ids=["at once", "much later"])
def test_a_syn_that_is_no_second_attempt_is_fast(
    tcp_testbed: FastPathTestbed, tcp_peers: Peers, seconds: int
) -> None:
    syn = tcp(tcp_peers.client, tcp_peers.backend)

    def twice() -> None:
        tcp_testbed.node.set_fields("fast_flows", fingerprint=0, state=0)
        assert forwarded(tcp_testbed.to_neighbour("pod0", syn), syn)
        tcp_testbed.node.age_direct(seconds)
        assert forwarded(tcp_testbed.to_neighbour("pod0", syn), syn)

    within_a_second(twice)


def test_a_syn_that_is_sent_again_after_its_answer_is_fast(
    tcp_testbed: FastPathTestbed, tcp_peers: Peers
) -> None:
    """As one with the ports of an older connection is, whose end was not seen."""
    client, backend = tcp_peers.client, tcp_peers.backend
    open_direct(tcp_testbed, tcp_peers)
    tcp_testbed.node.age_direct(1)
    syn = tcp(client, backend)
    assert forwarded(tcp_testbed.to_neighbour("pod0", syn), syn)
    answer = tcp(backend, client, "SA")
    assert forwarded(tcp_testbed.to_peer("eth0", answer, to="pod0"), answer)


def test_an_error_about_what_a_pod_exchanges_with_others_takes_the_stack(
    testbed: FastPathTestbed, fast_peers: Peers
) -> None:
    """Conntrack has seen the packet, and may have masqueraded it."""
    client, other = fast_peers.client, fast_peers.external
    for about in (fast_peers.data(client, other), fast_peers.opening(client, other)):
        arrives = error(address_of(other), address_of(client), about)
        assert same(testbed.to_stack("eth0", arrives), arrives)
    for about in (fast_peers.data(other, client), fast_peers.opening(other, client)):
        arrives = error(address_of(client), address_of(other), about)
        assert same(testbed.to_stack("pod0", arrives), arrives)
