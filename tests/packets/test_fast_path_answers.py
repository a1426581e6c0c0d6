"""Connections from outside to a pod on a bridge: answers come by its port or by the bridge.

By the bridge itself if there are no programs at the port: the pod came while no agent runs. Then
the stack serves them, and netfilter must not meet an answer first.
"""

from __future__ import annotations

import pytest

from bpfsvc.services.entries import Policies, Policy
from tests.packets.fast_path import WEB_PORT, FastPathTestbed, hop
from tests.packets.node import REDIRECT, UNSPEC
from tests.packets.packet import same, tcp
from tests.packets.peers import Peers, address_of
from tests.packets.test_fast_path_bridge import BRIDGE_MAC, be_neighbour, put_on_bridge
from tests.packets.untranslated import PORT, Untranslated, prepared, untranslated


def begun(testbed: FastPathTestbed, peers: Peers) -> Untranslated:
    """Have the pod be behind a port of a bridge, and the first packet to it have passed."""
    connection = prepared(testbed, peers)
    put_on_bridge(testbed, "pod0", "pod1")
    testbed.route(connection.pod, "tun0")
    be_neighbour(testbed, connection.pod, testbed.far["pod1"])
    verdict, _ = testbed.run("ingress", "eth0", tcp(connection.client, connection.pod))
    assert verdict == REDIRECT
    return connection


def test_a_pod_on_a_bridge_is_served_so_too(tcp_testbed: FastPathTestbed, tcp_peers: Peers) -> None:
    testbed = tcp_testbed
    connection = begun(testbed, tcp_peers)

    def answer(by: str, flags: str) -> int:
        packet = tcp(connection.pod, connection.client, flags)
        verdict, frame = testbed.run("ingress", by, packet, to=BRIDGE_MAC)
        assert same(frame.payload, hop(packet) if verdict == REDIRECT else packet)
        return verdict

    assert answer("pod1", "SA") == REDIRECT
    verdict, frame = testbed.run("ingress", "eth0", tcp(connection.client, connection.pod, "A"))
    assert verdict == REDIRECT
    assert same(testbed.egress("tun0", frame.payload, came_by="eth0"), frame.payload)
    assert answer("pod1", "PA") == REDIRECT
    # Another pod of the bridge could have sent it.
    assert answer("pod0", "S") == UNSPEC
    assert answer("pod1", "PA") == REDIRECT


def test_a_connection_whose_first_answer_comes_by_the_bridge_itself_is_the_stacks(
    tcp_testbed: FastPathTestbed, tcp_peers: Peers
) -> None:
    """The port has no programs: its pod came while no agent runs. Netfilter sees all that follows.

    The ACK first, so it does not take an answer of the pod for the beginning of a connection.
    """
    testbed = tcp_testbed
    connection = begun(testbed, tcp_peers)
    answer = tcp(connection.pod, connection.client, "SA")
    assert same(testbed.egress("eth0", answer, came_by="tun0"), answer)
    assert (untranslated(testbed.node), testbed.node.count("connections")) == (0, 0)
    for flags in ("A", "PA"):
        testbed.to_stack("eth0", tcp(connection.client, connection.pod, flags))
    answer = tcp(connection.pod, connection.client, "PA")
    assert same(testbed.egress("eth0", answer, came_by="tun0"), answer)


def test_the_port_of_such_a_connection_is_not_given_to_one_through_a_frontend(
    tcp_testbed: FastPathTestbed, tcp_peers: Peers
) -> None:
    testbed, peers = tcp_testbed, tcp_peers
    connection = begun(testbed, peers)
    testbed.egress("eth0", tcp(connection.pod, connection.client, "SA"), came_by="tun0")
    _, frame = testbed.run("ingress", "eth0", tcp(connection.client, peers.vip))
    out = testbed.egress("tun0", frame.payload, came_by="eth0")
    assert address_of(connection.pod) == out.dst
    assert out.payload.sport != PORT


def test_an_answer_by_the_port_keeps_a_connection_fast(
    tcp_testbed: FastPathTestbed, tcp_peers: Peers
) -> None:
    testbed = tcp_testbed
    connection = begun(testbed, tcp_peers)
    answer = tcp(connection.pod, connection.client, "SA")
    assert testbed.run("ingress", "pod1", answer, to=BRIDGE_MAC)[0] == REDIRECT
    assert same(testbed.egress("eth0", answer, came_by="pod1"), answer)
    ends = connection.client, connection.pod
    assert testbed.run("ingress", "eth0", tcp(*ends, "A"))[0] == REDIRECT


@pytest.mark.parametrize("again_after", [0.0, 1.0])
def test_a_syn_that_is_sent_again_after_a_second_takes_the_stack(
    tcp_testbed: FastPathTestbed, tcp_peers: Peers, again_after: float
) -> None:
    """Netfilter may drop the answers, which take the stack, because it has not seen the first."""
    testbed = tcp_testbed
    connection = begun(testbed, tcp_peers)
    testbed.node.age(again_after)
    syn = tcp(connection.client, connection.pod)
    by_stack = again_after > 0
    assert testbed.run("ingress", "eth0", syn)[0] == (UNSPEC if by_stack else REDIRECT)
    ends = connection.client, connection.pod
    assert testbed.run("ingress", "eth0", tcp(*ends, "A"))[0] == (UNSPEC if by_stack else REDIRECT)


def test_what_a_node_port_translates_without_a_masquerade_is_the_stacks_likewise(
    tcp_testbed: FastPathTestbed, tcp_peers: Peers
) -> None:
    """Of ``externalTrafficPolicy: Local``: it is translated on, both ways."""
    testbed, peers = tcp_testbed, tcp_peers
    client, entry, pod = peers.external, peers.on_node(WEB_PORT), peers.other_backend
    here = Policy(0, 1, masquerade=False, reject=False)
    testbed.node.settings(fast_path=1, fast_outside=1)
    peers.service(testbed.node, [pod], node_port=WEB_PORT, policies=Policies(here, here, here))
    put_on_bridge(testbed, "pod1")
    testbed.route(pod, "tun0")
    be_neighbour(testbed, pod, testbed.far["pod1"])
    assert testbed.run("ingress", "eth0", tcp(client, entry))[0] == REDIRECT
    back = testbed.egress("eth0", tcp(pod, client, "SA"), came_by="tun0")
    assert same(back, tcp(entry, client, "SA"))
    for flags in ("A", "PA"):
        sent = testbed.to_stack("eth0", tcp(client, entry, flags))
        assert same(sent, tcp(client, pod, flags))
    back = testbed.egress("eth0", tcp(pod, client, "PA"), came_by="tun0")
    assert same(back, tcp(entry, client, "PA"))
