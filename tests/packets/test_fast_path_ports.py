"""The fast path and source ports: direct connections of pods, and those through a Service.

One port of a client may be used for both, to one backend: the second gets another one, until the
first is over.
"""

from __future__ import annotations

import pytest
from scapy.packet import Packet

from tests.packets.fast_path import FastPathTestbed, forwarded, hop
from tests.packets.node import REDIRECT
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
        for step in ("client S", "backend SA", "client A", *steps):
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
        tcp_testbed.node.pinned.map("destinations").update(
            bytes(4), bytes(tcp_testbed.node.pinned.map("destinations").value_size)
        )
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
    other = pair.peers.with_port(pair.client, 40002)
    pair.client, before = other, pair.client
    pair.direct(*BY_FIN)
    assert pair.through_service() in {other, before}


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


def test_a_direct_connection_may_have_the_ports_of_one_through_the_service_that_is_over(
    pair: Pair,
) -> None:
    """Its answers are not translated: the entries of the older one are gone."""
    pair.through_service()
    for name, packet in (
        ("pod0", tcp(pair.client, pair.vip, "FA")),
        ("eth0", tcp(pair.backend, pair.client, "FA")),
        ("pod0", tcp(pair.client, pair.vip, "A")),
    ):
        assert pair.testbed.run("ingress", name, packet)[0] == REDIRECT
    pair.direct("client PA", "backend PA", *BY_FIN)


def fast(pair: Pair, packet: Packet) -> bool:
    return pair.testbed.run("ingress", "pod0", packet)[0] == REDIRECT


def test_a_connection_that_begins_by_the_stack_is_not_fast_because_an_older_one_was(
    pair: Pair,
) -> None:
    """Conntrack knows it from its SYN on, so it has to see the rest."""
    pair.direct()
    pair.testbed.write_interface("eth0", shortcut=False)
    pair.testbed.write_interface("pod0", shortcut=False)
    again = tcp(pair.client, pair.backend, "S")
    assert same(pair.testbed.to_stack("pod0", again), again)
    for name in ("eth0", "pod0"):
        pair.testbed.write_interface(name)
    assert not fast(pair, tcp(pair.client, pair.backend, "PA"))


def test_each_repeated_first_packet_is_fast(pair: Pair) -> None:
    for _ in range(3):
        pair.direct()
    assert pair.testbed.node.counter("direct_flows_noticed") == 0
