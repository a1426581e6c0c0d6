"""Connections that another node has masqueraded: two first packets at once, and rare routes."""

from __future__ import annotations

import pytest

from tests.packets.fast_path import FastPathTestbed, forwarded, prepare
from tests.packets.node import REDIRECT, SHOT, Node
from tests.packets.packet import same, tcp
from tests.packets.peers import TCP_PEERS, Peers, address_of
from tests.packets.test_fast_path_untranslated import refused
from tests.packets.untranslated import prepared, untranslated


@pytest.mark.usefixtures("one_cpu")
def test_of_two_first_packets_the_second_uses_the_connection_of_the_first(
    tcp_testbed: FastPathTestbed, tcp_peers: Peers
) -> None:
    """The step finds in memory what the second CPU knew before the first had written an entry."""
    testbed, node = tcp_testbed, tcp_testbed.node
    connection = prepared(testbed, tcp_peers)
    syn = tcp(connection.client, connection.pod)
    testbed.to_peer("eth0", syn, to="pod1")
    before = node.count("connections"), node.held(), untranslated(node)
    verdict, frame = testbed.run("step_untranslated", "eth0", syn)
    assert verdict == REDIRECT
    assert forwarded(frame.payload, syn)
    assert (node.count("connections"), node.held(), untranslated(node)) == before


@pytest.mark.usefixtures("one_cpu")
def test_a_first_packet_that_finds_half_of_a_connection_is_dropped_and_the_next_one_begins_anew(
    tcp_testbed: FastPathTestbed, tcp_peers: Peers
) -> None:
    testbed, node = tcp_testbed, tcp_testbed.node
    connection = prepared(testbed, tcp_peers)
    syn, answer = tcp(connection.client, connection.pod), tcp(connection.pod, connection.client)
    testbed.to_peer("eth0", syn, to="pod1")
    node.pinned.map("connections").delete(node.flow("egress", answer))
    assert testbed.run("step_untranslated", "eth0", syn)[0] == SHOT
    assert node.count("connections") == 0
    connection.opening()
    connection.both_ways()


def test_without_room_for_its_entries_a_connection_takes_the_stack(
    tcp_testbed: FastPathTestbed, tcp_peers: Peers
) -> None:
    """One entry alone is not left behind."""
    node = tcp_testbed.node
    connection = prepared(tcp_testbed, tcp_peers)
    connections = node.pinned.map("connections")
    record = node.pinned.layout.maps["connections"].key
    others = [
        record.pack({"source_port": number, "hook": 1})
        for number in range(connections.max_entries - 1)
    ]
    connections.update_many([(key, bytes(connections.value_size)) for key in others])
    refused(tcp_testbed, connection)
    assert (node.held(), untranslated(node)) == (0, 0)
    connections.delete_many(others)


ROUTERS = {4: ["172.16.5.12", "10.244.3.9"], 6: ["fd70::1", "fd45::3:9:7:5:8"]}
"""The address of the latter is similar to that of the pod."""


@pytest.mark.parametrize("router", [0, 1], ids=["", "with a similar address"])
def test_what_a_bridge_leads_to_a_router_takes_the_stack(
    tcp_testbed: FastPathTestbed, tcp_peers: Peers, router: int
) -> None:
    """The pod is not on this node. To one that is, it is fast."""
    testbed = tcp_testbed
    connection = prepared(testbed, tcp_peers)
    bridge = testbed.ends["pod1"].index
    testbed.write_interface("pod1", peer=False, bridge=bridge)
    testbed.route(connection.pod, "pod1", ROUTERS[tcp_peers.family][router])
    refused(testbed, connection)
    testbed.route(connection.pod, "pod1")
    syn = tcp(tcp_peers.with_port(connection.client, 20008), connection.pod)
    assert forwarded(testbed.to_neighbour("eth0", syn), syn)


def test_what_a_bridge_leads_to_a_router_of_the_other_family_takes_the_stack(
    fast_path_testbed: FastPathTestbed, node: Node
) -> None:
    testbed, peers = fast_path_testbed, TCP_PEERS[0]
    assert testbed.node is node
    prepare(testbed, peers)
    connection = prepared(testbed, peers)
    testbed.write_interface("pod1", peer=False, bridge=testbed.ends["pod1"].index)
    router = ["via", "inet6", "fd70::1", "dev", "pod1", "onlink"]
    testbed.here.run(["ip", "route", "replace", address_of(connection.pod), *router])
    testbed.forget_routes()
    refused(testbed, connection)
    testbed.route(connection.pod, "pod1")


def test_what_leaves_by_an_interface_that_is_known_no_more_takes_the_stack(
    tcp_testbed: FastPathTestbed, tcp_peers: Peers
) -> None:
    """Its entry is gone; routes are remembered for a moment."""
    testbed = tcp_testbed
    connection = prepared(testbed, tcp_peers)
    testbed.write_interface("pod1", peer=False, bridge=testbed.ends["pod1"].index)
    syn = tcp(connection.client, connection.pod)
    assert forwarded(testbed.to_neighbour("eth0", syn), syn)
    testbed.node.pinned.map("interfaces").delete(testbed.ends["pod1"].index.to_bytes(4, "little"))
    later = connection._replace(client=tcp_peers.with_port(connection.client, 20008))
    syn = tcp(later.client, later.pod)
    assert same(testbed.to_stack("eth0", syn), syn)
