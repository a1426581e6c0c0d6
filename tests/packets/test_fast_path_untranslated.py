"""The fast path on a backend's node, of connections that another node has masqueraded.

Nothing translates them here. Netfilter sees all packets of one, or none.
"""

from __future__ import annotations

import pytest
from scapy.layers.inet import IP

from bpfsvc.agent.flows.connection_gc import ConnectionGc
from tests.packets import queues
from tests.packets.fast_path import FastPathTestbed, fast_packets, forwarded, hop
from tests.packets.fragment import PAYLOAD, cut
from tests.packets.icmp_errors import error
from tests.packets.node import UNSPEC
from tests.packets.packet import same, tcp, udp
from tests.packets.peers import Peers, address_of
from tests.packets.test_changed_entries import without_step
from tests.packets.test_connection_gc import KEEP
from tests.packets.test_fast_path_outside import _with_options
from tests.packets.untranslated import (
    PORT,
    RANGE,
    Untranslated,
    count_untranslated,
    opened,
    prepared,
    untranslated,
)


def test_every_packet_is_fast_and_stays_as_it_is(
    tcp_testbed: FastPathTestbed, tcp_peers: Peers
) -> None:
    before = fast_packets(tcp_testbed)
    connection = opened(tcp_testbed, tcp_peers)
    for payload in (b"a", b"b" * 1400):
        connection.both_ways(payload)
    connection.close()
    assert fast_packets(tcp_testbed) - before == 9


def refused(testbed: FastPathTestbed, connection: Untranslated) -> None:
    """Assert that the stack serves a connection from its SYN on, and nothing is written."""
    before = testbed.node.count("connections")
    syn = tcp(connection.client, connection.pod)
    assert same(testbed.to_stack("eth0", syn), syn)
    testbed.to_stack("pod1", tcp(connection.pod, connection.client, "SA"))
    connection.by_stack()
    assert testbed.node.count("connections") == before


@pytest.mark.parametrize(
    "settings",
    [
        {"fast_path": 0},
        {"fast_outside": 0},
        {"fast_path_second": 1},
        {"first": 40000, "ports": 1000},
    ],
    ids=["given up", "not from outside", "no agent watches for rules", "another port"],
)
def test_the_stack_serves_a_connection_from_its_beginning_where_it_may_not_be_fast(
    tcp_testbed: FastPathTestbed, tcp_peers: Peers, settings: dict[str, int]
) -> None:
    refused(tcp_testbed, prepared(tcp_testbed, tcp_peers, **settings))


def test_the_stack_serves_what_is_for_no_endpoint(
    tcp_testbed: FastPathTestbed, tcp_peers: Peers
) -> None:
    connection = prepared(tcp_testbed, tcp_peers)
    other = tcp_peers.with_port(connection.pod, 9999)
    refused(tcp_testbed, connection._replace(pod=other))


def test_the_stack_serves_what_is_for_a_pod_elsewhere(
    tcp_testbed: FastPathTestbed, tcp_peers: Peers
) -> None:
    """This node only routes it."""
    connection = prepared(tcp_testbed, tcp_peers)
    tcp_peers.service(tcp_testbed.node, [tcp_peers.backend], name="far")
    to_stack = tcp(connection.client, tcp_peers.backend)
    tcp_testbed.to_stack("eth0", to_stack)
    assert tcp_testbed.node.count("connections") == 0


def test_what_comes_by_another_interface_than_answers_leave_takes_the_stack(
    tcp_testbed: FastPathTestbed, tcp_peers: Peers
) -> None:
    """A reverse path filter has to drop it: a stranger, or a pod that uses another's address."""
    connection = prepared(tcp_testbed, tcp_peers)
    tcp_testbed.to_stack("pod0", tcp(connection.client, connection.pod))
    assert tcp_testbed.node.count("connections") == 0
    connection = opened(tcp_testbed, tcp_peers)
    tcp_testbed.to_stack("pod0", tcp_peers.data(connection.client, connection.pod))
    tcp_testbed.to_stack("pod0", tcp_peers.data(connection.pod, connection.client))
    connection.both_ways()


@pytest.mark.parametrize("flags", ["S", "SA"])
def test_a_syn_in_the_name_of_a_pod_from_elsewhere_ends_nothing(
    tcp_testbed: FastPathTestbed, tcp_peers: Peers, flags: str
) -> None:
    connection = opened(tcp_testbed, tcp_peers)
    tcp_testbed.to_stack("pod0", tcp(connection.pod, connection.client, flags))
    connection.both_ways()


def test_a_datagram_takes_the_stack(udp_testbed: FastPathTestbed, udp_peers: Peers) -> None:
    """Anybody could make one up, and so take a flow of the pod's own away from netfilter."""
    connection = prepared(udp_testbed, udp_peers)
    packet = udp(connection.client, connection.pod)
    udp_testbed.to_stack("eth0", packet)
    udp_testbed.to_stack("pod1", udp(connection.pod, connection.client))
    assert udp_testbed.node.count("connections") == 0


def test_what_netfilter_translates_to_the_same_flow_keeps_the_stack(
    tcp_testbed: FastPathTestbed, tcp_peers: Peers
) -> None:
    """A hostPort was asked from that port: the pod's answers have to be translated back."""
    connection = prepared(tcp_testbed, tcp_peers)
    syn = tcp(connection.client, connection.pod)
    assert same(tcp_testbed.egress("pod1", syn, came_by="eth0"), syn)
    refused(tcp_testbed, connection)


def test_what_netfilter_translates_to_the_same_flow_later_gets_another_port(
    tcp_testbed: FastPathTestbed, tcp_peers: Peers
) -> None:
    connection = opened(tcp_testbed, tcp_peers)
    out = tcp_testbed.egress("pod1", tcp(connection.client, connection.pod), came_by="eth0")
    moved = tcp_peers.with_port(out.src, out.payload.sport)
    assert moved != connection.client
    back = tcp_testbed.to_stack("pod1", tcp(connection.pod, moved, "SA"))
    assert same(back, tcp(connection.pod, connection.client, "SA"))
    connection.both_ways()


def test_beyond_a_part_of_the_map_the_stack_serves_connections(
    tcp_testbed: FastPathTestbed, tcp_peers: Peers
) -> None:
    connection = prepared(tcp_testbed, tcp_peers)
    node = tcp_testbed.node
    most = node.pinned.map("connections").max_entries // 16
    count_untranslated(node, most)
    refused(tcp_testbed, connection)
    assert (untranslated(node), node.held()) == (most, 0)
    count_untranslated(node, most - 1)
    other = tcp_peers.with_port(connection.client, PORT + 1)
    connection._replace(client=other).opening()


def test_of_the_room_for_half_open_connections_half_is_left_to_services(
    tcp_testbed: FastPathTestbed, tcp_peers: Peers
) -> None:
    connection = prepared(tcp_testbed, tcp_peers)
    node = tcp_testbed.node
    half = node.pinned.map("connections").max_entries // 32 // 2
    node.half_open(half)
    refused(tcp_testbed, connection)
    assert (untranslated(node), node.held()) == (0, half)
    tcp_testbed.to_peer("pod0", tcp(tcp_peers.client, tcp_peers.vip), to="pod1")
    assert node.held() == half + 1


def test_connections_are_counted_until_they_are_removed(
    tcp_testbed: FastPathTestbed, tcp_peers: Peers
) -> None:
    node = tcp_testbed.node
    connection = opened(tcp_testbed, tcp_peers)
    assert (untranslated(node), node.held(), node.count("connections")) == (1, 0, 2)
    key = node.flow("ingress", tcp(connection.client, connection.pod))
    assert node.collect(key) == 0
    connection.close()
    node.settings(**RANGE, fast_path=1, fast_outside=1, tcp_closed_seconds=2)
    node.age(5)
    assert node.collect(key) == 1
    assert (untranslated(node), node.held(), node.count("connections")) == (0, 0, 0)


def test_a_connection_that_is_removed_as_soon_as_it_is_closed_is_counted_no_more(
    tcp_testbed: FastPathTestbed, tcp_peers: Peers
) -> None:
    node = tcp_testbed.node
    opened(tcp_testbed, tcp_peers).close()
    node.settings(**RANGE, fast_path=1, fast_outside=1, tcp_closed_seconds=2)
    node.age(5)
    for name in queues.QUEUES:
        queues.age(node.pinned.map(name), 5)
    assert ConnectionGc(node.pinned, KEEP, 60).remove_closed() == 1
    assert (untranslated(node), node.held(), node.count("connections")) == (0, 0, 0)


def test_the_gc_corrects_the_count(tcp_testbed: FastPathTestbed, tcp_peers: Peers) -> None:
    node = tcp_testbed.node
    opened(tcp_testbed, tcp_peers)
    count_untranslated(node, node.pinned.map("connections").max_entries)
    ConnectionGc(node.pinned, KEEP, 60).sweep()
    assert untranslated(node) == 1


def test_a_reset_ends_a_connection_and_the_next_one_is_fast(
    tcp_testbed: FastPathTestbed, tcp_peers: Peers
) -> None:
    connection = prepared(tcp_testbed, tcp_peers)
    for _ in range(2):
        syn, reset = tcp(connection.client, connection.pod), tcp(connection.pod, connection.client)
        assert forwarded(tcp_testbed.to_peer("eth0", syn, to="pod1"), syn)
        reset.payload.flags = "RA"
        back = tcp_testbed.to_neighbour("pod1", reset)
        assert forwarded(back, reset)
        assert same(tcp_testbed.egress("eth0", back), back)
    assert untranslated(tcp_testbed.node) == 1


def test_a_port_may_begin_again_when_its_connection_is_closed(
    tcp_testbed: FastPathTestbed, tcp_peers: Peers
) -> None:
    connection = opened(tcp_testbed, tcp_peers)
    connection.close()
    connection.opening()
    assert untranslated(tcp_testbed.node) == 1


@pytest.mark.parametrize("closed", [True, False], ids=["closed", "of a pod before this one"])
def test_a_connection_of_the_pod_with_the_same_ports_takes_the_stack(
    tcp_testbed: FastPathTestbed, tcp_peers: Peers, closed: bool
) -> None:
    """A CNI may masquerade it, so netfilter has to see its beginning, and then all of it."""
    connection = opened(tcp_testbed, tcp_peers)
    if closed:
        connection.close()
    tcp_testbed.to_stack("pod1", tcp(connection.pod, connection.client))
    assert (untranslated(tcp_testbed.node), tcp_testbed.node.count("connections")) == (0, 0)
    connection.by_stack()


def test_an_answer_to_what_began_elsewhere_after_the_end_takes_the_stack(
    tcp_testbed: FastPathTestbed, tcp_peers: Peers
) -> None:
    """Its SYN came by an interface that the programs are not at."""
    connection = opened(tcp_testbed, tcp_peers)
    connection.close()
    tcp_testbed.to_stack("pod1", tcp(connection.pod, connection.client, "SA"))
    connection.by_stack()


def test_a_pod_with_the_address_of_an_older_one_answers_by_the_fast_path(
    tcp_testbed: FastPathTestbed, tcp_peers: Peers
) -> None:
    """It resets what it does not know, and the client gets that from whom it asked."""
    connection = opened(tcp_testbed, tcp_peers)
    tcp_testbed.unroute(connection.pod)
    tcp_testbed.route(connection.pod, "pod0")
    data = tcp_peers.data(connection.client, connection.pod)
    assert forwarded(tcp_testbed.to_peer("eth0", data, to="pod0"), data)
    reset = tcp(connection.pod, connection.client, "R")
    assert forwarded(tcp_testbed.to_neighbour("pod0", reset), reset)
    tcp_testbed.to_stack("pod1", tcp_peers.data(connection.pod, connection.client))


@pytest.mark.parametrize(
    "settings",
    [{"fast_outside": 1}, {"fast_outside": 1, "takeover": 1}, {"fast_path_second": 1}],
    ids=["new ones take the stack", "an older build is copied", "no agent watches for rules"],
)
def test_what_is_fast_stays_so(
    tcp_testbed: FastPathTestbed, tcp_peers: Peers, settings: dict[str, int]
) -> None:
    connection = opened(tcp_testbed, tcp_peers)
    tcp_testbed.node.settings(**({**RANGE, "fast_path": 0, "fast_outside": 1} | settings))
    connection.both_ways()


def test_when_the_fast_path_is_given_up_the_stack_gets_packets_as_they_are(
    tcp_testbed: FastPathTestbed, tcp_peers: Peers
) -> None:
    connection = opened(tcp_testbed, tcp_peers)
    tcp_testbed.node.settings(**RANGE, fast_path=0, fast_outside=0)
    connection.by_stack()


def test_packets_with_options_and_fragments_are_fast_too(
    tcp_testbed: FastPathTestbed, tcp_peers: Peers
) -> None:
    """The stack would begin a connection of netfilter's with an answer."""
    connection = opened(tcp_testbed, tcp_peers)
    for by, to, ends in (
        ("eth0", "pod1", (connection.client, connection.pod)),
        ("pod1", "eth0", (connection.pod, connection.client)),
    ):
        longer = _with_options(tcp_peers.data(*ends))
        sent = tcp_testbed.to_neighbour(by, longer)
        assert same(tcp_testbed.egress(to, sent, came_by=by), hop(longer))
        whole = tcp_peers.data(*ends, PAYLOAD)
        for fragment in cut(type(whole)(bytes(whole))):
            if isinstance(fragment, IP):
                del fragment.chksum  # of the header, to be computed after its last hop
            sent = tcp_testbed.to_neighbour(by, fragment)
            assert same(tcp_testbed.egress(to, sent, came_by=by), hop(fragment))


def test_an_error_about_an_answer_is_fast(tcp_testbed: FastPathTestbed, tcp_peers: Peers) -> None:
    """A router asks for shorter packets. Netfilter would call that invalid."""
    connection = opened(tcp_testbed, tcp_peers)
    about = tcp_peers.data(connection.pod, connection.client)
    comes = error(tcp_peers.router, address_of(connection.pod), about)
    assert same(tcp_testbed.to_neighbour("eth0", comes), hop(comes))
    about = tcp_peers.data(connection.client, connection.pod)
    comes = error(address_of(connection.pod), address_of(connection.client), about)
    assert same(tcp_testbed.to_neighbour("pod1", comes), hop(comes))


def test_a_syn_that_is_sent_again_though_it_was_answered_stays_fast(
    tcp_testbed: FastPathTestbed, tcp_peers: Peers
) -> None:
    connection = prepared(tcp_testbed, tcp_peers)
    connection.opening()
    tcp_testbed.node.age(1)
    connection.opening()


@pytest.mark.usefixtures("one_cpu")
@pytest.mark.parametrize("meanwhile", ["", "another has taken its key", "it is gone"])
def test_an_opening_of_the_pod_ends_only_the_connection_that_it_has_shown_to_be_over(
    tcp_testbed: FastPathTestbed, tcp_peers: Peers, meanwhile: str
) -> None:
    connection, node = opened(tcp_testbed, tcp_peers), tcp_testbed.node
    opening = tcp(connection.pod, connection.client)
    with without_step(node, "step_first"):
        tcp_testbed.run("ingress", "pod1", opening)
    if meanwhile.startswith("another"):
        node.set_fields("connections", outside=0)
    elif meanwhile:
        node.delete_entries("connections")
        node.fill_filter(1)
    verdict, frame = tcp_testbed.run("step_first", "pod1", opening)
    assert verdict == UNSPEC
    assert same(frame.payload, opening)
    assert node.count("connections") == (2 if meanwhile.startswith("another") else 0)
