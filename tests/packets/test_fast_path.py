"""The fast path: which packets take it, and that they leave as the stack would have sent them.

A packet that is sent to a neighbour passes egress as always; the tests run egress by hand.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest
from scapy.layers.inet import IP, IPOption_NOP
from scapy.layers.inet6 import IPv6ExtHdrDestOpt
from scapy.packet import Packet

from tests.packets.extension_headers import with_headers
from tests.packets.fast_path import (
    MTU,
    WEB_PORT,
    FastPathTestbed,
    fast_packets,
    forwarded,
    hop,
    open_far,
    open_masqueraded,
    open_near,
)
from tests.packets.icmp_errors import error
from tests.packets.node import REDIRECT
from tests.packets.packet import same, tcp
from tests.packets.peers import Peers, address_of


def test_every_packet_to_another_node_and_back_is_fast(
    testbed: FastPathTestbed, fast_peers: Peers
) -> None:
    """From the first one: conntrack never sees the connection. Replies go directly to the pod."""
    client, vip, backend = fast_peers.client, fast_peers.vip, fast_peers.backend
    open_far(testbed, fast_peers)
    for payload in (b"a", b"bc", b"d" * 1400):
        sent = testbed.to_neighbour("pod0", fast_peers.data(client, vip, payload))
        assert forwarded(sent, fast_peers.data(client, backend, payload))
        back = testbed.to_peer("eth0", fast_peers.data(backend, client, payload), to="pod0")
        assert forwarded(back, fast_peers.data(vip, client, payload))
    assert fast_packets(testbed) == 9


def test_packets_between_pods_of_one_node_go_directly_both_ways(
    testbed: FastPathTestbed, fast_peers: Peers
) -> None:
    client, vip, near = fast_peers.client, fast_peers.vip, fast_peers.other_backend
    open_near(testbed, fast_peers)
    sent = testbed.to_peer("pod0", fast_peers.data(client, vip), to="pod1")
    assert forwarded(sent, fast_peers.data(client, near))
    back = testbed.to_peer("pod1", fast_peers.data(near, client), to="pod0")
    assert forwarded(back, fast_peers.data(vip, client))


def test_of_a_masqueraded_connection_only_the_first_packets_are_translated_where_they_leave(
    testbed: FastPathTestbed, fast_peers: Peers
) -> None:
    """A NodePort that a pod asks, with a backend on another node."""
    client, entry = fast_peers.client, fast_peers.on_node(WEB_PORT)
    seen = open_masqueraded(testbed, fast_peers, fast_peers.backend, "eth0")
    sent = testbed.to_neighbour("pod0", fast_peers.data(client, entry))
    assert forwarded(sent, fast_peers.data(seen, fast_peers.backend))
    back = testbed.to_peer("eth0", fast_peers.data(fast_peers.backend, seen), to="pod0")
    assert forwarded(back, fast_peers.data(entry, client))


def test_a_packet_sent_directly_to_a_pod_is_masqueraded_at_ingress(
    testbed: FastPathTestbed, fast_peers: Peers
) -> None:
    """The packet bypasses egress of the interface, so ingress does the work of both."""
    client, entry, near = (
        fast_peers.client,
        fast_peers.on_node(WEB_PORT),
        fast_peers.other_backend,
    )
    seen = open_masqueraded(testbed, fast_peers, near, "pod1")
    sent = testbed.to_peer("pod0", fast_peers.data(client, entry), to="pod1")
    assert forwarded(sent, fast_peers.data(seen, near))
    back = testbed.to_peer("pod1", fast_peers.data(near, seen), to="pod0")
    assert forwarded(back, fast_peers.data(entry, client))


def test_a_backend_reaches_itself(testbed: FastPathTestbed, fast_peers: Peers) -> None:
    """In and out by one interface, masqueraded, and directly back."""
    near, vip = fast_peers.other_backend, fast_peers.vip
    caller = fast_peers.with_port(near, 40000)
    fast_peers.service(testbed.node, [near], hairpin=True)
    sent = testbed.to_neighbour("pod1", fast_peers.opening(caller, vip))
    out = testbed.egress("pod1", sent)
    seen = fast_peers.with_port(out.src, out.payload.sport)
    assert same(out, hop(fast_peers.opening(seen, near)))
    back = testbed.to_neighbour("pod1", fast_peers.answer(near, seen))
    assert same(testbed.egress("pod1", back), hop(fast_peers.answer(vip, caller)))
    comes, _ = fast_peers.proof(caller, vip, near, seen)
    testbed.egress("pod1", testbed.to_neighbour("pod1", comes))
    sent = testbed.to_peer("pod1", fast_peers.data(caller, vip), to="pod1")
    assert forwarded(sent, fast_peers.data(seen, near))
    back = testbed.to_peer("pod1", fast_peers.data(near, seen), to="pod1")
    assert forwarded(back, fast_peers.data(vip, caller))


@pytest.mark.parametrize("flags", ["FA", "R", "RA"])
def test_the_end_of_a_connection_is_fast_and_recorded(
    tcp_testbed: FastPathTestbed, tcp_peers: Peers, flags: str
) -> None:
    """Conntrack would call an end without a beginning invalid. The port can be used again."""
    client, vip, backend = tcp_peers.client, tcp_peers.vip, tcp_peers.backend
    open_far(tcp_testbed, tcp_peers)
    sent = tcp_testbed.to_neighbour("pod0", tcp(client, vip, flags))
    assert forwarded(sent, tcp(client, backend, flags))
    back = tcp_testbed.to_peer("eth0", tcp(backend, client, flags), to="pod0")
    assert forwarded(back, tcp(vip, client, flags))
    open_far(tcp_testbed, tcp_peers)
    assert tcp_testbed.node.counter("connections_reopened") == 1


def test_a_reused_client_port_may_reach_another_backend(
    tcp_testbed: FastPathTestbed, tcp_peers: Peers
) -> None:
    client, vip, near = tcp_peers.client, tcp_peers.vip, tcp_peers.other_backend
    open_far(tcp_testbed, tcp_peers)
    tcp_testbed.to_neighbour("pod0", tcp(client, vip, "R"))
    tcp_peers.service(tcp_testbed.node, [near])
    sent = tcp_testbed.to_peer("pod0", tcp(client, vip, "S"), to="pod1")
    assert forwarded(sent, tcp(client, near, "S"))


def test_a_connection_continues_on_the_fast_path_after_a_pause(
    testbed: FastPathTestbed, fast_peers: Peers
) -> None:
    """The entry for its egress may have been removed meanwhile, or is at least looked up again."""
    client, entry, near = (
        fast_peers.client,
        fast_peers.on_node(WEB_PORT),
        fast_peers.other_backend,
    )
    seen = open_masqueraded(testbed, fast_peers, near, "pod1")
    testbed.node.age(5)
    sent = testbed.to_peer("pod0", fast_peers.data(client, entry), to="pod1")
    assert forwarded(sent, fast_peers.data(seen, near))


def test_an_unknown_neighbour_is_resolved_when_a_packet_is_sent(
    testbed: FastPathTestbed, fast_peers: Peers
) -> None:
    """The packet need not go by the stack: the kernel's neighbour output resolves the address."""
    client, vip, backend = fast_peers.client, fast_peers.vip, fast_peers.backend
    open_far(testbed, fast_peers)
    testbed.forget_neighbour(client, "pod0")
    back = testbed.to_neighbour("eth0", fast_peers.data(backend, client))
    assert forwarded(back, fast_peers.data(backend, client))
    assert same(testbed.egress("pod0", back), hop(fast_peers.data(vip, client)))


# -- packets that the stack must handle, in the middle of a connection ------------------------


def long(packet: Packet) -> Packet:
    return packet / (b"x" * MTU)


def with_options(packet: Packet) -> Packet:
    if isinstance(packet, IP):
        packet = packet.copy()
        packet.options = [IPOption_NOP()] * 4
        return packet
    return with_headers(packet, IPv6ExtHdrDestOpt())


SLOW_PACKETS: dict[str, Callable[[Packet], Packet]] = {
    "its last hop": lambda packet: hop(packet, 1),
    "no hop left": lambda packet: hop(packet, 0),
    "longer than the MTU": long,
    "with options": with_options,
}


@pytest.mark.parametrize("kind", SLOW_PACKETS)
def test_a_packet_that_the_stack_must_see_is_translated_and_passed_to_it(
    testbed: FastPathTestbed, fast_peers: Peers, kind: str
) -> None:
    client, vip, backend = fast_peers.client, fast_peers.vip, fast_peers.backend
    open_far(testbed, fast_peers)
    before = fast_packets(testbed)
    change = SLOW_PACKETS[kind]
    assert same(
        testbed.to_stack("pod0", change(fast_peers.data(client, vip))),
        change(fast_peers.data(client, backend)),
    )
    reply = change(fast_peers.data(backend, client))
    assert same(testbed.to_stack("eth0", reply), reply)
    assert same(testbed.egress("pod0", reply), change(fast_peers.data(vip, client)))
    assert fast_packets(testbed) == before
    assert forwarded(
        testbed.to_neighbour("pod0", fast_peers.data(client, vip)), fast_peers.data(client, backend)
    )


def test_of_a_gso_packet_the_length_of_each_segment_counts(
    tcp_testbed: FastPathTestbed, tcp_peers: Peers
) -> None:
    client, vip, backend = tcp_peers.client, tcp_peers.vip, tcp_peers.backend
    open_far(tcp_testbed, tcp_peers)
    headers = len(bytes(tcp(client, vip, "PA")))
    payload = b"x" * 2900
    sent = tcp_testbed.to_neighbour("pod0", tcp_peers.data(client, vip, payload), gso=MTU - headers)
    assert forwarded(sent, tcp_peers.data(client, backend, payload))
    tcp_testbed.to_peer(
        "eth0", tcp_peers.data(backend, client, payload), to="pod0", gso=MTU - headers
    )
    tcp_testbed.to_stack("pod0", tcp_peers.data(client, vip, payload), gso=MTU - headers + 1)
    tcp_testbed.to_stack("eth0", tcp_peers.data(backend, client, payload), gso=MTU - headers + 1)


def test_a_frame_for_another_machine_is_not_sent_on(
    testbed: FastPathTestbed, fast_peers: Peers
) -> None:
    """An interface in promiscuous mode sees such frames; they would be sent twice."""
    open_far(testbed, fast_peers)
    data = fast_peers.data(fast_peers.client, fast_peers.vip)
    verdict, frame = testbed.run("ingress", "pod0", data, to="02:00:00:00:00:99")
    assert verdict != REDIRECT
    assert same(frame.payload, fast_peers.data(fast_peers.client, fast_peers.backend))


def test_a_packet_from_another_interface_is_left_to_the_reverse_path_filter(
    testbed: FastPathTestbed, fast_peers: Peers
) -> None:
    client, vip, backend = fast_peers.client, fast_peers.vip, fast_peers.backend
    open_far(testbed, fast_peers)
    assert same(
        testbed.to_stack("pod1", fast_peers.data(client, vip)), fast_peers.data(client, backend)
    )
    reply = fast_peers.data(backend, client)
    assert same(testbed.to_stack("pod1", reply), reply)


def test_when_the_fast_path_is_turned_off_the_stack_serves_its_connections(
    testbed: FastPathTestbed, fast_peers: Peers
) -> None:
    client, vip, backend = fast_peers.client, fast_peers.vip, fast_peers.backend
    open_far(testbed, fast_peers)
    testbed.node.settings(fast_path=0)
    assert same(
        testbed.to_stack("pod0", fast_peers.data(client, vip)), fast_peers.data(client, backend)
    )
    reply = fast_peers.data(backend, client)
    assert same(testbed.to_stack("eth0", reply), reply)
    assert same(testbed.egress("pod0", reply), fast_peers.data(vip, client))


def test_while_connections_of_an_older_build_are_copied_nothing_is_fast(
    testbed: FastPathTestbed, fast_peers: Peers
) -> None:
    """Egress drops packets of connections not yet copied, so no packet may bypass it."""
    client, vip, backend = fast_peers.client, fast_peers.vip, fast_peers.backend
    open_far(testbed, fast_peers)
    testbed.node.settings(fast_path=1, takeover=1)
    assert same(
        testbed.to_stack("pod0", fast_peers.data(client, vip)), fast_peers.data(client, backend)
    )
    assert testbed.run("ingress", "eth0", fast_peers.data(backend, client))[0] != REDIRECT


def test_an_interface_that_leaves_the_fast_path_is_served_by_the_stack(
    testbed: FastPathTestbed, fast_peers: Peers
) -> None:
    client, vip, backend = fast_peers.client, fast_peers.vip, fast_peers.backend
    open_far(testbed, fast_peers)
    testbed.write_interface("eth0", shortcut=False)
    assert same(
        testbed.to_stack("pod0", fast_peers.data(client, vip)), fast_peers.data(client, backend)
    )


# -- errors about fast connections ------------------------------------------------------------


def test_a_routers_error_about_a_request_is_fast(
    testbed: FastPathTestbed, fast_peers: Peers
) -> None:
    """Conntrack does not know the connection. At egress the error is about the frontend."""
    client, vip, backend = fast_peers.client, fast_peers.vip, fast_peers.backend
    open_far(testbed, fast_peers)
    comes = error(fast_peers.router, address_of(client), fast_peers.data(client, backend))
    sent = testbed.to_neighbour("eth0", comes)
    assert forwarded(sent, comes)
    wanted = error(fast_peers.router, address_of(client), fast_peers.data(client, vip))
    assert same(testbed.egress("pod0", sent), hop(wanted))


def test_an_error_about_a_masqueraded_request_is_fast(
    testbed: FastPathTestbed, fast_peers: Peers
) -> None:
    client, entry, backend = fast_peers.client, fast_peers.on_node(WEB_PORT), fast_peers.backend
    seen = open_masqueraded(testbed, fast_peers, backend, "eth0")
    sent = testbed.to_neighbour(
        "eth0", error(fast_peers.router, fast_peers.node_address, fast_peers.data(seen, backend))
    )
    assert forwarded(
        sent, error(fast_peers.router, address_of(client), fast_peers.data(client, backend))
    )
    wanted = error(fast_peers.router, address_of(client), fast_peers.data(client, entry))
    assert same(testbed.egress("pod0", sent), hop(wanted))


def test_an_error_about_a_reply_is_fast(testbed: FastPathTestbed, fast_peers: Peers) -> None:
    """The client itself sends it, to the frontend; the backend gets an error about its packet."""
    client, vip, backend = fast_peers.client, fast_peers.vip, fast_peers.backend
    open_far(testbed, fast_peers)
    kind = "port unreachable"
    sent = testbed.to_neighbour(
        "pod0", error(address_of(client), address_of(vip), fast_peers.data(vip, client), kind)
    )
    wanted = error(address_of(client), address_of(backend), fast_peers.data(backend, client), kind)
    assert forwarded(sent, wanted)


def test_an_error_about_a_connection_of_the_stack_is_passed_to_the_stack(
    testbed: FastPathTestbed, fast_peers: Peers
) -> None:
    client, vip, backend = fast_peers.client, fast_peers.vip, fast_peers.backend
    testbed.node.settings(fast_path=0)
    open_slow = fast_peers.opening(client, vip)
    fast_peers.service(testbed.node, [backend])
    testbed.to_stack("pod0", open_slow)
    testbed.node.settings(fast_path=1)
    comes = error(fast_peers.router, address_of(client), fast_peers.opening(client, backend))
    assert same(testbed.to_stack("eth0", comes), comes)


@pytest.mark.parametrize("fast", [True, False], ids=["by the fast path", "by the stack"])
def test_a_first_packet_that_another_cpu_has_overtaken_goes_to_the_backend_of_that(
    testbed: FastPathTestbed, fast_peers: Peers, fast: bool
) -> None:
    """The Service has changed since: without the port filter the programs miss the first one."""
    client, vip, backend = fast_peers.served(testbed.node)
    opening, translated = fast_peers.opening(client, vip), fast_peers.opening(client, backend)
    testbed.node.settings(fast_path=fast)
    testbed.run("ingress", "pod0", opening)
    testbed.node.settings(fast_path=1)
    fast_peers.service(testbed.node, [fast_peers.other_backend])
    testbed.node.fill_filter(0)
    raced = testbed.node.counter("connections_raced")
    if fast:
        assert forwarded(testbed.to_neighbour("pod0", opening), translated)
    else:
        assert same(testbed.to_stack("pod0", opening), translated)
    assert testbed.node.counter("connections_raced") == raced + 1
