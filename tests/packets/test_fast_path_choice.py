"""Which connections take the fast path: the first packet decides for all that follow."""

from __future__ import annotations

import time

import pytest

from tests.packets.fast_path import FastPathTestbed, fast_packets, forwarded, open_far, prepare
from tests.packets.node import Node
from tests.packets.packet import same
from tests.packets.peers import SCTP_PEERS, Peers, address_of


def assert_all_by_the_stack(testbed: FastPathTestbed, peers: Peers, client: str, by: str) -> None:
    """Open a connection; assert that all its packets go by the stack."""
    vip, backend = peers.vip, peers.backend
    peers.service(testbed.node, [backend])
    sent = testbed.to_stack(by, peers.opening(client, vip))
    assert same(sent, peers.opening(client, backend))
    reply = peers.answer(backend, client)
    assert same(testbed.to_stack("eth0", reply), reply)
    assert same(testbed.egress(by, reply), peers.answer(vip, client))
    proof, goes = peers.proof(client, vip, backend, client)
    if peers.protocol == "TCP":
        assert same(testbed.to_stack(by, proof), goes)
    assert same(testbed.to_stack(by, peers.data(client, vip)), peers.data(client, backend))
    assert fast_packets(testbed) == 0


def test_a_connection_older_than_the_fast_path_stays_with_the_stack(
    testbed: FastPathTestbed, fast_peers: Peers
) -> None:
    """Conntrack has seen its beginning, so it must see its end, too."""
    testbed.node.settings(fast_path=0)
    fast_peers.service(testbed.node, [fast_peers.backend])
    assert same(
        testbed.to_stack("pod0", fast_peers.opening(fast_peers.client, fast_peers.vip)),
        fast_peers.opening(fast_peers.client, fast_peers.backend),
    )
    testbed.node.settings(fast_path=1)
    reply = fast_peers.answer(fast_peers.backend, fast_peers.client)
    assert same(testbed.to_stack("eth0", reply), reply)
    testbed.to_stack("pod0", fast_peers.data(fast_peers.client, fast_peers.vip))
    assert fast_packets(testbed) == 0


def unguarded(testbed: FastPathTestbed) -> None:
    """Write the settings as an agent left them that ended two minutes ago."""
    testbed.node.settings(fast_path=1, fast_path_second=(int(time.monotonic()) - 120) % (1 << 32))


def test_a_connection_that_begins_without_a_guard_stays_with_the_stack(
    testbed: FastPathTestbed, fast_peers: Peers
) -> None:
    """No agent looks for rules that a fast packet would bypass, as after a crash."""
    unguarded(testbed)
    assert_all_by_the_stack(testbed, fast_peers, fast_peers.client, "pod0")
    testbed.node.settings(fast_path=1)
    testbed.to_stack("pod0", fast_peers.data(fast_peers.client, fast_peers.vip))


def test_a_connection_that_has_begun_stays_fast_without_a_guard(
    testbed: FastPathTestbed, fast_peers: Peers
) -> None:
    """Conntrack has not seen it: what it sent would be invalid for it."""
    open_far(testbed, fast_peers)
    unguarded(testbed)
    sent = testbed.to_neighbour("pod0", fast_peers.data(fast_peers.client, fast_peers.vip))
    assert forwarded(sent, fast_peers.data(fast_peers.client, fast_peers.backend))


@pytest.mark.parametrize("seconds", [-30, 1], ids=["half a minute ago", "a clock that is ahead"])
def test_a_guard_that_was_there_a_moment_ago_is_one(
    testbed: FastPathTestbed, fast_peers: Peers, seconds: int
) -> None:
    """A restart of the agent changes nothing."""
    testbed.node.settings(fast_path=1, fast_path_second=int(time.monotonic()) + seconds)
    open_far(testbed, fast_peers)


@pytest.mark.parametrize("name", ["pod0", "eth0"])
def test_a_connection_through_an_excluded_interface_stays_with_the_stack(
    testbed: FastPathTestbed, fast_peers: Peers, name: str
) -> None:
    testbed.write_interface(name, shortcut=False)
    assert_all_by_the_stack(testbed, fast_peers, fast_peers.client, "pod0")


def test_a_connection_whose_replies_leave_by_another_interface_stays_with_the_stack(
    testbed: FastPathTestbed, fast_peers: Peers
) -> None:
    assert_all_by_the_stack(testbed, fast_peers, fast_peers.client, "pod1")


def test_a_connection_without_a_route_back_stays_with_the_stack(
    testbed: FastPathTestbed, fast_peers: Peers
) -> None:
    lost = fast_peers.with_port(
        "10.244.1.77" if fast_peers.family == 4 else "fd44:0:0:1::77", 40000
    )
    assert_all_by_the_stack(testbed, fast_peers, lost, "pod0")


def test_a_connection_to_this_node_itself_stays_with_the_stack(
    testbed: FastPathTestbed, fast_peers: Peers
) -> None:
    """A backend in the node's own network: nothing is forwarded."""
    node_address = fast_peers.on_node(6443)
    fast_peers.service(testbed.node, [node_address])
    assert same(
        testbed.to_stack("pod0", fast_peers.opening(fast_peers.client, fast_peers.vip)),
        fast_peers.opening(fast_peers.client, node_address),
    )


@pytest.mark.parametrize("who", ["the backend", "the client"])
def test_a_connection_that_the_cni_masquerades_stays_with_the_stack(
    testbed: FastPathTestbed, fast_peers: Peers, who: str
) -> None:
    """A CNI masquerades in the stack what leaves the pod ranges, unless bpfsvc does."""
    outside = fast_peers.with_port(address_of(fast_peers.external), 6443)
    pods = (fast_peers.client, "pod0", outside), (fast_peers.external, "eth0", fast_peers.backend)
    client, by, backend = pods[who == "the client"]
    fast_peers.service(testbed.node, [backend])
    assert same(
        testbed.to_stack(by, fast_peers.opening(client, fast_peers.vip)),
        fast_peers.opening(client, backend),
    )


@pytest.mark.parametrize("masquerade", [False, True], ids=["its own address", "masqueraded"])
def test_a_connection_from_outside_stays_with_the_stack(
    testbed: FastPathTestbed, fast_peers: Peers, masquerade: bool
) -> None:
    """If netfilter met it in its middle, by an answer, a CNI would masquerade the pod's address."""
    external, vip, near = fast_peers.external, fast_peers.vip, fast_peers.other_backend
    fast_peers.service(testbed.node, [near], masquerade=masquerade)
    sent = testbed.to_stack("eth0", fast_peers.opening(external, vip))
    assert same(sent, fast_peers.opening(external, near))


@pytest.mark.parametrize("sctp", SCTP_PEERS, ids=str)
def test_a_connection_of_sctp_stays_with_the_stack(
    fast_path_testbed: FastPathTestbed, node: Node, sctp: Peers
) -> None:
    prepare(fast_path_testbed, sctp)
    sctp.service(node, [sctp.backend])
    assert same(
        fast_path_testbed.to_stack("pod0", sctp.opening(sctp.client, sctp.vip)),
        sctp.opening(sctp.client, sctp.backend),
    )


def test_without_the_option_nothing_is_fast(testbed: FastPathTestbed, fast_peers: Peers) -> None:
    testbed.node.settings(fast_path=0)
    assert_all_by_the_stack(testbed, fast_peers, fast_peers.client, "pod0")
