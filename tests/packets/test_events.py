"""Events: what the programs tell about packets of Services, while somebody wants to know."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import pytest
from scapy.packet import Packet

from bpfsvc.base.protocols import PROTOCOLS
from bpfsvc.datapath.maps.ring_buffer import RingBuffer
from bpfsvc.services.entries import Policies, Policy
from tests.packets.events import Events
from tests.packets.fast_path import FastPathTestbed, open_far
from tests.packets.node import Node
from tests.packets.packet import LINK, tcp, udp
from tests.packets.peers import Peers

REJECT, DROP = Policy(0, 0, False, True), Policy(0, 0, False, False)


@pytest.fixture
def events(node: Node) -> Iterator[Events]:
    """The events of the node, all kinds of which are asked for."""
    asked = Events(node)
    yield asked
    asked.close()


def parts(event: dict[str, Any], *names: str) -> tuple[Any, ...]:
    return tuple(event[name] for name in names)


def kinds(events: Events) -> list[str]:
    return [event["kind"] for event in events.read()]


def test_a_connection_is_made_and_answered(node: Node, events: Events, peers: Peers) -> None:
    before = time.monotonic_ns()
    client, vip, backend, _ = peers.connected(node)
    made, answered = events.read()
    ends = {"client": client, "frontend": vip, "backend": backend}
    for event, kind in ((made, "made"), (answered, "answered")):
        assert {name: event[name] for name in ends} == ends
        assert parts(event, "kind", "reason", "path") == (kind, "none", "tc")
        assert parts(event, "protocol", "masquerade", "sample") == (PROTOCOLS[peers.protocol], 0, 1)
        assert before < event["time"] < time.monotonic_ns()
        assert event["service"] > 0
        assert event["counters"] > 0
    assert made["took_us"] == 0
    apart = (answered["time"] - made["time"]) / 1000
    # A tick of the coarse clock may be between; the next test asks for more.
    assert answered["took_us"] == pytest.approx(apart, abs=20_000)


def test_the_time_of_an_answer_is_exact_to_some_microseconds(
    node: Node, events: Events, tcp_peers: Peers
) -> None:
    """The clock that connections are dated by ticks every few milliseconds."""
    apart = []
    for port in range(2000, 2040):
        client = tcp_peers.with_port(tcp_peers.client, port)
        if port == 2000:
            tcp_peers.service(node, [tcp_peers.backend])
        tcp_peers.connect(node, client, tcp_peers.vip, tcp_peers.backend)
        made, answered = events.read()
        apart.append(answered["took_us"] - (answered["time"] - made["time"]) / 1000)
    # A tick of the clock between the decision to observe and the connection's date is rare.
    assert sorted(apart)[len(apart) // 2] == pytest.approx(0, abs=50)


def test_a_masqueraded_connection_says_so(node: Node, events: Events, peers: Peers) -> None:
    client, vip, _, _ = peers.connected(node, outside=True, masquerade=True)
    made, answered = events.read()
    assert parts(made, "kind", "client", "frontend", "masquerade") == ("made", client, vip, 1)
    assert parts(answered, "kind", "client", "frontend") == ("answered", client, vip)


def test_a_syn_that_is_sent_again_is_told(node: Node, events: Events, tcp_peers: Peers) -> None:
    client, vip, backend = tcp_peers.served(node)
    for _ in range(3):
        node.forward(tcp_peers.opening(client, vip))
    told = events.read()
    assert [event["kind"] for event in told] == ["made", "repeated", "repeated"]
    assert parts(told[-1], "client", "frontend", "backend") == (client, vip, backend)


def test_a_backend_that_refuses_is_told_once(node: Node, events: Events, tcp_peers: Peers) -> None:
    client, vip, backend = tcp_peers.served(node)
    node.forward(tcp_peers.opening(client, vip))
    for _ in range(2):
        node.forward(tcp(backend, client, "RA"))
    _, refused = events.read()
    assert parts(refused, "kind", "reason") == ("refused", "backend_reset")
    assert parts(refused, "client", "frontend", "backend") == (client, vip, backend)


def test_further_packets_of_a_connection_are_not_told(
    node: Node, events: Events, peers: Peers
) -> None:
    client, vip, backend, seen = peers.connected(node)
    events.read()
    for _ in range(3):
        node.forward(peers.data(client, vip))
        node.forward(peers.data(backend, seen))
    assert events.read() == []


@pytest.mark.parametrize(("policy", "kind"), [(REJECT, "refused"), (DROP, "dropped")])
def test_a_service_without_endpoints_is_told(
    node: Node, events: Events, peers: Peers, policy: Policy, kind: str
) -> None:
    policies = Policies(policy, policy, policy)
    peers.service(node, [], frontends=[peers.vip], policies=policies)
    node.run("ingress", peers.opening(peers.client, peers.vip))
    (event,) = events.read()
    assert parts(event, "kind", "reason", "path") == (kind, "no_endpoints", "tc")
    assert parts(event, "client", "frontend", "backend") == (peers.client, peers.vip, "")
    assert event["service"] > 0


def test_a_client_outside_the_source_ranges_is_told(
    node: Node, events: Events, peers: Peers
) -> None:
    network = "10.244.0.0/16" if peers.family == 4 else "fd44::/32"
    peers.service(node, [peers.backend], ranges=[network])
    node.run("ingress", peers.opening(peers.external, peers.vip))
    (event,) = events.read()
    assert parts(event, "kind", "reason") == ("dropped", "source_range")


def test_a_connection_without_a_free_port_is_told(node: Node, events: Events, peers: Peers) -> None:
    """The client has the one port that there is to the same backend, by another Service."""
    client, vip, backend = peers.served(node)
    node.settings(first=int(client.rpartition(":")[2]), ports=1)
    peers.service(node, [backend], name="other", frontends=[peers.other_vip])
    peers.connect(node, client, vip, backend)
    events.read()
    assert node.drops("ingress", peers.opening(client, peers.other_vip))
    (event,) = events.read()
    assert parts(event, "kind", "reason") == ("dropped", "source_ports_exhausted")
    assert parts(event, "client", "frontend", "backend") == (client, peers.other_vip, "")


def test_a_connection_on_the_fast_path_says_so(
    tcp_testbed: FastPathTestbed, tcp_peers: Peers
) -> None:
    events = Events(tcp_testbed.node)
    try:
        open_far(tcp_testbed, tcp_peers)
        told = events.read()
        assert [parts(event, "kind", "path") for event in told] == [
            ("made", "fast_path"),
            ("answered", "fast_path"),
        ]
    finally:
        events.close()


def ended(node: Node, events: Events, hook: str, packet: Packet, **how: Any) -> dict[str, Any]:
    """Have the connection of a packet removed; return the event of its end."""
    events.read()
    assert node.collect(node.flow(hook, packet), **how) == 1
    (event,) = events.read()
    assert event["kind"] == "ended"
    return event


def test_a_connection_that_both_sides_close_is_told_with_its_time(
    node: Node, events: Events, tcp_peers: Peers
) -> None:
    client, vip, backend, seen = tcp_peers.connected(node)
    made = events.read()[0]
    tcp_peers.close(node, client, vip, backend, seen)
    closed = time.monotonic_ns()
    events.ask("ended")
    node.settings(tcp_closed_seconds=0)
    event = ended(node, events, "ingress", tcp(client, vip), early_ports=True)
    assert event["reason"] == "closed"
    assert parts(event, "client", "frontend", "backend") == (client, vip, backend)
    assert 0 <= event["took_us"] <= (closed - made["time"]) / 1000 + 100


def test_an_end_is_the_same_by_the_entry_of_the_backends_packets(
    node: Node, events: Events, peers: Peers
) -> None:
    client, vip, backend, seen = peers.connected(node)
    node.settings(tcp_established_seconds=0, udp_seconds=0, sctp_seconds=0)
    event = ended(node, events, "egress", peers.answer(backend, seen))
    assert event["reason"] == "idle"
    assert parts(event, "client", "frontend", "backend") == (client, vip, backend)


def test_a_connection_that_is_reset_is_told_with_the_side_that_has_reset_it(
    node: Node, events: Events, tcp_peers: Peers
) -> None:
    """What the other side still had on its way changes nothing."""
    client, vip, backend, seen = tcp_peers.connected(node)
    node.settings(tcp_closed_seconds=0)
    node.forward(tcp(client, vip, "R"))
    node.forward(tcp(backend, seen, "A"))
    assert ended(node, events, "ingress", tcp(client, vip))["reason"] == "client_reset"
    client, vip, backend, seen = tcp_peers.connected(node)
    node.forward(tcp(backend, seen, "R"))
    node.forward(tcp(client, vip, "A"))
    assert ended(node, events, "ingress", tcp(client, vip))["reason"] == "backend_reset"


def test_a_reset_after_the_clients_end_is_told_of_the_backend(
    node: Node, events: Events, tcp_peers: Peers
) -> None:
    client, vip, backend, seen = tcp_peers.connected(node)
    node.settings(tcp_closed_seconds=0)
    node.forward(tcp(client, vip, "FA"))
    node.forward(tcp(backend, seen, "R"))
    assert ended(node, events, "ingress", tcp(client, vip))["reason"] == "backend_reset"


def test_a_connection_that_no_backend_has_answered_is_told(
    node: Node, events: Events, peers: Peers
) -> None:
    client, vip, _ = peers.served(node)
    opening = peers.opening(client, vip)
    node.forward(opening)
    node.settings(half_open_seconds=0)
    assert ended(node, events, "ingress", opening)["reason"] == "unanswered"


def test_a_connection_that_is_removed_is_told(node: Node, events: Events, peers: Peers) -> None:
    client, vip, _, _ = peers.connected(node)
    opening = peers.opening(client, vip)
    assert ended(node, events, "ingress", opening, force=True)["reason"] == "removed"


def test_the_end_of_a_connection_that_was_made_unobserved_is_not_told(
    node: Node, events: Events, peers: Peers
) -> None:
    events.ask()
    client, vip, _, _ = peers.connected(node)
    events.ask("made", "ended")
    assert node.collect(node.flow("ingress", peers.opening(client, vip)), force=True) == 1
    assert events.read() == []


def test_a_connection_without_a_port_to_masquerade_to_is_told(
    node: Node, events: Events, tcp_peers: Peers
) -> None:
    peers = tcp_peers
    peers.service(node, [peers.backend], masquerade=True)
    node.settings(ports=1)
    peers.connect(node, peers.external, peers.vip, peers.backend)
    events.read()
    events.ask("dropped")
    later = peers.with_port(peers.external, 40001)
    out = node.ingress(peers.opening(later, peers.vip))
    assert node.drops("egress", out)
    (event,) = events.read()
    assert parts(event, "kind", "reason", "masquerade") == ("dropped", "masquerade", 1)
    assert parts(event, "client", "frontend", "backend") == (later, "", peers.backend)


def test_of_a_sample_of_connections_without_a_port_the_others_are_not_told(
    node: Node, events: Events, tcp_peers: Peers
) -> None:
    peers = tcp_peers
    peers.service(node, [peers.backend], masquerade=True)
    node.settings(ports=1)
    peers.connect(node, peers.external, peers.vip, peers.backend)
    events.read()
    events.ask("dropped", failures=3)
    routed = node.ingress(peers.opening(peers.with_port(peers.external, 40001), peers.vip))
    for _ in range(200):
        assert node.drops("egress", routed)
    told = events.read()
    assert 15 < len(told) < 95  # of 200, one of 4: 50
    assert {event["sample"] for event in told} == {4}


def test_packets_that_no_service_is_for_are_not_told(node: Node, events: Events) -> None:
    node.forward(udp("10.244.1.5:1000", "10.244.2.5:53"))
    node.forward(tcp("10.244.1.5:1000", "10.244.2.5:80"))
    assert events.read() == []


def test_nothing_is_told_while_nobody_asks(node: Node, events: Events, peers: Peers) -> None:
    events.ask()
    peers.connected(node)
    peers.service(node, [], name="empty", frontends=[peers.other_vip])
    node.run("ingress", peers.opening(peers.client, peers.other_vip))
    assert events.read() == []


def test_only_the_kinds_that_are_asked_for_are_told(
    node: Node, events: Events, tcp_peers: Peers
) -> None:
    events.ask("refused", "dropped")
    tcp_peers.connected(node)
    tcp_peers.service(node, [], name="empty", frontends=[tcp_peers.other_vip])
    node.run("ingress", tcp_peers.opening(tcp_peers.client, tcp_peers.other_vip))
    assert kinds(events) == ["refused"]


def test_the_answer_of_a_connection_that_was_made_unobserved_is_not_told(
    node: Node, events: Events, peers: Peers
) -> None:
    events.ask()
    client, vip, backend = peers.served(node)
    node.forward(peers.opening(client, vip))
    events.ask("made", "answered")
    node.forward(peers.answer(backend, client))
    assert events.read() == []


def test_of_a_sample_each_connection_is_told_whole_or_not_at_all(
    node: Node, events: Events, tcp_peers: Peers
) -> None:
    events.ask("made", "answered", connections=3)
    tcp_peers.service(node, [tcp_peers.backend])
    for port in range(3000, 3200):
        client = tcp_peers.with_port(tcp_peers.client, port)
        tcp_peers.connect(node, client, tcp_peers.vip, tcp_peers.backend)
    told = events.read()
    made = {event["client"] for event in told if event["kind"] == "made"}
    answered = {event["client"] for event in told if event["kind"] == "answered"}
    assert made == answered
    assert 15 < len(made) < 95  # of 200, one of 4: 50
    assert {event["sample"] for event in told} == {4}


def test_of_a_sample_of_failures_the_others_are_not_told(
    node: Node, events: Events, tcp_peers: Peers
) -> None:
    events.ask("refused", failures=3)
    tcp_peers.service(node, [])
    for _ in range(200):
        node.run("ingress", tcp_peers.opening(tcp_peers.client, tcp_peers.vip))
    told = events.read()
    assert 15 < len(told) < 95  # of 200, one of 4: 50
    assert {event["sample"] for event in told} == {4}


def test_events_without_room_are_counted(node: Node, events: Events, tcp_peers: Peers) -> None:
    tcp_peers.service(node, [])
    opening = bytes(LINK / tcp_peers.opening(tcp_peers.client, tcp_peers.vip))
    told = events.fill(opening)
    assert 0 <= node.counter("events_lost") - 25 <= 1
    assert events.room - 1 <= len(told) <= events.room
    node.run_frame("ingress", opening)
    assert kinds(events) == ["refused"]


@pytest.mark.parametrize("kind", ["refused", "dropped"])
def test_an_event_has_nothing_of_an_older_event_in_the_same_memory(
    node: Node, events: Events, tcp_peers: Peers, kind: str
) -> None:
    peers = tcp_peers
    client, vip, _ = peers.served(node, outside=True, masquerade=True)
    for _ in range(2):
        older = events.fill(bytes(LINK / peers.opening(client, vip)))
    assert all(older[-1][field] for field in ("counters", "masquerade", "backend", "frontend"))
    if kind == "refused":
        peers.service(node, [], name="none", frontends=[peers.other_vip])
        node.run("ingress", peers.opening(client, peers.other_vip))
        (event,) = events.read()
        assert parts(event, "frontend", "backend") == (peers.other_vip, "")
        assert parts(event, "counters", "masquerade", "took_us") == (0, 0, 0)
    else:
        node.settings(ports=1)
        other = [peers.with_port(client, port) for port in (1, 2)]
        node.forward(peers.opening(other[0], vip))
        node.drops("egress", node.ingress(peers.opening(other[1], vip)))
        event = events.read()[-1]
        assert parts(event, "reason", "frontend") == ("masquerade", "")
        assert parts(event, "counters", "took_us") == (0, 0)


def test_another_reader_goes_on_where_the_first_one_stopped(
    node: Node, events: Events, tcp_peers: Peers
) -> None:
    tcp_peers.service(node, [])
    opening = tcp_peers.opening(tcp_peers.client, tcp_peers.vip)
    node.run("ingress", opening)
    assert kinds(events) == ["refused"]
    node.run("ingress", opening)
    ring = node.pinned.map("events")
    other = RingBuffer(ring.fd, ring.max_entries)
    assert len(list(other.read(10))) == 1
    other.close()
