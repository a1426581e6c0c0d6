"""The fast path and source ports: direct connections of pods, and those through a Service.

One port of a client may be used for both, to one backend: the second gets another one, until the
first is over.
"""

from __future__ import annotations

import pytest

from tests.packets.fast_path import FastPathTestbed, forwarded, hop
from tests.packets.node import REDIRECT, Node
from tests.packets.packet import same, tcp
from tests.packets.peers import Peers
from tests.packets.test_collisions import BY_FIN, ENDS


class Pair:
    """A pod of this node, and a backend of a Service on another node: all is fast."""

    def __init__(self, testbed: FastPathTestbed, peers: Peers) -> None:
        self.testbed, self.peers = testbed, peers
        self.client, self.backend, self.vip = peers.client, peers.backend, peers.vip
        peers.service(testbed.node, [self.backend])

    def direct(self, *steps: str) -> None:
        """Open a direct connection; then the ``client`` or ``backend`` sends packets by flags."""
        self.sends("client S", "backend SA", "client A", *steps)

    def sends(self, *steps: str) -> None:
        """Have both sides send packets of a direct connection."""
        for step in steps:
            name, flags = step.split()
            if name == "client":
                packet = tcp(self.client, self.backend, flags)
                got = self.testbed.to_neighbour("pod0", packet)
            else:
                packet = tcp(self.backend, self.client, flags)
                got = self.testbed.to_peer("eth0", packet, to="pod0")
            assert forwarded(got, packet)

    def through_service(self) -> str:
        """Open a connection through the Service; return the client as the backend sees it."""
        sent = self.testbed.to_neighbour("pod0", self.peers.opening(self.client, self.vip))
        seen = self.peers.with_port(sent.src, sent.payload.sport)
        assert same(sent, hop(self.peers.opening(seen, self.backend)))
        back = self.testbed.to_neighbour("eth0", self.peers.answer(self.backend, seen))
        answer = self.peers.answer(self.vip, self.client)
        assert same(self.testbed.egress("pod0", back), hop(answer))
        self.testbed.to_neighbour("pod0", tcp(self.client, self.vip, "A"))
        return seen


@pytest.fixture(params=["by the fast path alone", "by the steps of first packets"])
def pair(request: pytest.FixtureRequest, tcp_testbed: FastPathTestbed, tcp_peers: Peers) -> Pair:
    """A first packet takes more steps while every address may be one of a frontend."""
    if request.param.endswith("first packets"):
        table = tcp_testbed.node.pinned.map("destinations")
        table.update(bytes(4), bytes(table.value_size))
    return Pair(tcp_testbed, tcp_peers)


def test_a_connection_through_the_service_gets_another_port_than_a_fast_direct_one(
    pair: Pair,
) -> None:
    pair.direct()
    assert pair.through_service() != pair.client
    assert pair.testbed.node.counter("source_ports_changed") == 1
    pair.testbed.to_neighbour("pod0", tcp(pair.client, pair.backend, "PA"))


@pytest.mark.parametrize("how", ENDS)
def test_the_port_is_free_when_the_direct_connection_is_over(pair: Pair, how: str) -> None:
    pair.direct(*ENDS[how])
    pair.testbed.node.age_direct(3)
    assert pair.through_service() == pair.client


def test_the_port_is_in_use_for_a_moment_after_the_end_of_an_old_direct_connection(
    pair: Pair,
) -> None:
    pair.direct()
    pair.testbed.node.age_direct(60)
    pair.sends(*BY_FIN)
    assert pair.through_service() != pair.client


@pytest.mark.parametrize("step", ["client FA", "backend FA"])
def test_the_port_is_in_use_as_long_as_one_side_has_not_closed(pair: Pair, step: str) -> None:
    pair.direct(step, step)
    pair.testbed.node.age_direct(60000)
    assert pair.through_service() != pair.client


def test_the_port_of_a_connection_that_has_just_ended_is_taken_if_there_is_no_other(
    pair: Pair,
) -> None:
    pair.direct(*BY_FIN)
    assert pair.through_service() != pair.client
    pair.testbed.node.settings(first=int(pair.client.rpartition(":")[2]), ports=1, fast_path=1)
    pair.client = pair.peers.with_port(pair.client, 40002)
    pair.direct(*BY_FIN)
    assert pair.through_service() == pair.client


def test_a_direct_connection_that_begins_anew_needs_its_port_again(pair: Pair) -> None:
    pair.direct(*BY_FIN)
    pair.direct()
    pair.testbed.node.age_direct(3)
    assert pair.through_service() != pair.client


def test_a_direct_connection_gets_another_port_than_one_through_the_service(pair: Pair) -> None:
    assert pair.through_service() == pair.client
    for _ in range(2):
        sent = pair.testbed.to_neighbour("pod0", tcp(pair.client, pair.backend))
        seen = pair.peers.with_port(sent.src, sent.payload.sport)
        assert seen != pair.client
    answer = pair.testbed.to_neighbour("eth0", tcp(pair.backend, seen, "SA"))
    back = pair.testbed.egress("pod0", answer)
    assert same(back, hop(tcp(pair.backend, pair.client, "SA")))


def close_through_service(pair: Pair) -> None:
    """Have both sides close a connection through the Service."""
    for name, packet in (
        ("pod0", tcp(pair.client, pair.vip, "FA")),
        ("eth0", tcp(pair.backend, pair.client, "FA")),
        ("pod0", tcp(pair.client, pair.vip, "A")),
    ):
        assert pair.testbed.run("ingress", name, packet)[0] == REDIRECT


def test_a_direct_connection_keeps_its_other_port_when_the_one_through_the_service_is_gone(
    pair: Pair,
) -> None:
    node, syn = pair.testbed.node, tcp(pair.client, pair.backend)
    pair.through_service()
    seen = pair.testbed.to_neighbour("pod0", syn).payload.sport
    close_through_service(pair)
    node.age(11)
    assert node.collect(*(key for key, _ in node.pinned.map("connections").items())) == 1
    assert pair.testbed.to_neighbour("pod0", syn).payload.sport == seen != syn.payload.sport


def test_a_direct_connection_may_have_the_ports_of_one_through_the_service_that_is_over(
    pair: Pair,
) -> None:
    """Its answers are not translated: the entries of the older one are gone."""
    pair.through_service()
    close_through_service(pair)
    pair.direct("client PA", "backend PA", *BY_FIN)


def test_a_forged_first_packet_does_not_take_a_connection_from_the_fast_path(pair: Pair) -> None:
    """By another pod's interface: the stack's reverse path filter drops it."""
    pair.direct()
    forged = tcp(pair.client, pair.backend, "S")
    assert same(pair.testbed.to_stack("pod1", forged), forged)
    pair.testbed.to_neighbour("pod0", tcp(pair.client, pair.backend, "PA"))


def test_a_first_packet_on_its_last_hop_does_not_take_a_connection_from_the_fast_path(
    pair: Pair,
) -> None:
    pair.direct()
    last = hop(tcp(pair.client, pair.backend, "S"), 1)
    assert same(pair.testbed.to_stack("pod0", last), last)
    pair.testbed.to_neighbour("pod0", tcp(pair.client, pair.backend, "PA"))


@pytest.mark.parametrize("port", [12345, 40001])
def test_a_first_packet_that_enters_a_pod_by_its_interface_stays_fast(
    pair: Pair, port: int
) -> None:
    """It passes egress there, which asks for ports of the masquerade range whose they are."""
    peers, testbed = pair.peers, pair.testbed
    client, near = peers.with_port(pair.client, port), peers.other_backend
    peers.service(testbed.node, [near], "near", frontends=[peers.other_vip])
    testbed.node.settings(fast_path=1, fast_outside=1)
    testbed.forget_neighbour(near, "pod1")
    sent = testbed.run("ingress", "pod0", tcp(client, near))
    assert sent[0] == REDIRECT
    testbed.egress("pod1", sent[1].payload, came_by="pod0")
    assert testbed.run("ingress", "pod1", tcp(near, client, "SA"))[0] == REDIRECT


def test_a_flow_that_ended_under_an_older_build_needs_no_port(pair: Pair) -> None:
    """Which did not write who has ended it, nor when."""
    pair.direct()
    pair.testbed.node.set_fields("fast_flows", state=7, second=0)
    assert pair.through_service() == pair.client


def test_each_repeated_first_packet_is_fast(pair: Pair) -> None:
    for _ in range(3):
        pair.direct()
    assert pair.testbed.node.counter("direct_flows_noticed") == 0


def test_a_first_packet_to_an_endpoint_needs_no_step(
    without_lookup: Node, tcp_testbed: FastPathTestbed, tcp_peers: Peers
) -> None:
    assert tcp_testbed.node is without_lookup
    Pair(tcp_testbed, tcp_peers).direct()
