"""Connections that processes of the node open, where connect() does not refuse them.

It lets them go on where the answer is to be silence: what leaves is dropped. What is to be refused
comes from kernels where connect() cannot say so, and from processes outside of the cgroup.
"""

from __future__ import annotations

from typing import Any

from bpfsvc.base.address import pack
from bpfsvc.services.entries import Policies, Policy
from tests.packets.events import Events
from tests.packets.node import REDIRECT, SHOT, UNSPEC, Node
from tests.packets.packet import same
from tests.packets.peers import Peers
from tests.packets.refusals import reset
from tests.packets.test_source_ranges import ELSEWHERE, STRANGERS

DROP, REJECT = Policy(0, 0, False, False), Policy(0, 0, False, True)
SERVE = Policy(0, 1, False, False)


def verdict(node: Node, peers: Peers, to: str, *, arrived: int = 0, source: str = "") -> int:
    """Return the verdict of egress on the SYN of a process of the node."""
    packet = peers.opening(source or peers.on_node(40000), to)
    found, after = node.run("egress", packet, arrived=arrived)
    assert bytes(after) == bytes(packet)
    return found


def policies(node: Node, peers: Peers, of_node: Policy) -> None:
    peers.service(
        node, [peers.backend], frontends=[peers.vip], policies=Policies(SERVE, of_node, SERVE)
    )


def test_a_service_without_endpoints_for_the_node_is_silent(node: Node, tcp_peers: Peers) -> None:
    policies(node, tcp_peers, DROP)
    assert verdict(node, tcp_peers, tcp_peers.vip) == SHOT
    assert node.counter("dropped__no_endpoints") == 1
    assert node.states() == (0, 0)


def test_a_service_without_endpoints_for_the_node_that_refuses_answers_by_a_reset(
    node: Node, tcp_peers: Peers
) -> None:
    policies(node, tcp_peers, REJECT)
    packet = tcp_peers.opening(tcp_peers.on_node(40000), tcp_peers.vip)
    told = Events(node)
    found, after = node.run("egress", packet)
    assert found == REDIRECT
    assert same(after, reset(packet))
    assert node.counter("rejected__no_endpoints") == 1
    assert node.counter("rejected__unknown_connection") == 0
    assert [(event["kind"], event["reason"]) for event in told.read()] == [
        ("refused", "no_endpoints")
    ]
    told.close()


def test_what_connect_translates_is_left_alone(node: Node, tcp_peers: Peers) -> None:
    """As a process outside of the cgroup sends it: another proxy may serve it."""
    policies(node, tcp_peers, SERVE)
    assert verdict(node, tcp_peers, tcp_peers.vip) == UNSPEC
    assert verdict(node, tcp_peers, tcp_peers.other_vip) == UNSPEC
    assert node.counter("dropped__no_endpoints") == node.counter("rejected__no_endpoints") == 0


def test_only_the_first_packet_of_the_node_itself_is_judged(node: Node, tcp_peers: Peers) -> None:
    """What came by an interface was judged there."""
    policies(node, tcp_peers, DROP)
    assert verdict(node, tcp_peers, tcp_peers.vip, arrived=node.interface) == UNSPEC
    packet = tcp_peers.data(tcp_peers.on_node(40000), tcp_peers.vip)
    assert node.run("egress", packet)[0] == UNSPEC


def test_a_frontend_of_other_clients_is_silent(node: Node, tcp_peers: Peers) -> None:
    """The address that the packet has counts, and that which connect() takes for the node's."""
    own: dict[str, Any] = {f"node_v{tcp_peers.family}": pack(tcp_peers.node_address)}
    node.settings(**own)
    tcp_peers.service(node, [tcp_peers.backend], ranges=[ELSEWHERE[tcp_peers.family]])
    assert verdict(node, tcp_peers, tcp_peers.vip) == SHOT
    inside = tcp_peers.with_port(tcp_peers.router, 40000)
    assert verdict(node, tcp_peers, tcp_peers.vip, source=inside) == SHOT
    assert node.counter("dropped__source_range") == 2
    tcp_peers.service(node, [tcp_peers.backend], ranges=[STRANGERS[tcp_peers.family]])
    assert verdict(node, tcp_peers, tcp_peers.vip) == UNSPEC
    assert verdict(node, tcp_peers, tcp_peers.vip, source=inside) == SHOT


def test_a_free_cluster_ip_is_silent_and_a_port_that_no_service_has_is_not(
    node: Node, tcp_peers: Peers
) -> None:
    tcp_peers.service(node, [tcp_peers.backend], guarded=True)
    assert verdict(node, tcp_peers, tcp_peers.with_port(tcp_peers.vip, 81)) == UNSPEC
    assert verdict(node, tcp_peers, tcp_peers.other_vip) == UNSPEC
    node.service_networks("10.96.0.0/16" if tcp_peers.family == 4 else "fd96::/64")
    assert verdict(node, tcp_peers, tcp_peers.other_vip) == SHOT
    assert verdict(node, tcp_peers, tcp_peers.with_port(tcp_peers.vip, 81)) == UNSPEC
    assert verdict(node, tcp_peers, tcp_peers.external) == UNSPEC
