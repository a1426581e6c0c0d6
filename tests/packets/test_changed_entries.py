"""The agent changes the entries of a Service while a packet is between two steps.

The first choice stays then: it was made from entries that were valid together.
"""

from __future__ import annotations

import struct
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest
from scapy.packet import Packet

from bpfsvc.base.protocols import PROTOCOLS
from bpfsvc.explain.programs import decide
from bpfsvc.explain.question import question
from bpfsvc.services.entries import Policies, Policy
from bpfsvc.services.scheduling.schedulers import Schedule
from tests.packets.loads import Loaded
from tests.packets.node import UNSPEC, Node
from tests.packets.packet import address_port, same, tcp
from tests.packets.peers import TCP_PEERS, Peers, address_of
from tests.packets.test_connection_limits import FIRST_PORT, LIMIT, Limited
from tests.packets.test_spill import ALL, NEAR, spilling
from tests.packets.test_trials import Tried

pytestmark = pytest.mark.usefixtures("one_cpu")
"""What is known of a packet is in memory of its CPU."""

TRIED = Policy(0, 1, masquerade=False, reject=False, trials=1)


@contextmanager
def without_step(node: Node, step: str) -> Iterator[None]:
    """Have programs handle packets until they would jump to a step."""
    steps = node.pinned.map("steps")
    key = struct.pack("=I", node.pinned.layout.constant(step.upper()))
    assert steps.delete(key)
    yield
    steps.update(key, node.pinned.program(step).to_bytes(4, sys.byteorder))


def stopped(node: Node, step: str, packet: Packet) -> None:
    """Have ingress handle a packet until it would jump to a step."""
    with without_step(node, step):
        dropped = node.drops("ingress", packet)
    assert dropped
    assert node.counter("dropped__step_missing") > 0


def take_frontend(node: Node, peers: Peers) -> None:
    """Have the frontend of a Service be that of another one, with a backend on trial, too."""
    backends = [peers.with_port(peers.other_backend, port) for port in (7000, 7001)]
    policies = Policies(TRIED, TRIED, TRIED, watched=True)
    peers.service(node, backends, "other", frontends=[peers.other_vip], policies=policies)
    frontends = node.pinned.map("frontends")
    taken = frontends.lookup(frontend_key(node, peers, peers.other_vip))
    assert taken is not None
    frontends.update(frontend_key(node, peers, peers.vip), taken)


def frontend_key(node: Node, peers: Peers, frontend: str) -> bytes:
    address, port = address_port(frontend)
    record = node.pinned.layout.maps["frontends"].key
    return record.pack({"address": address, "port": port, "protocol": PROTOCOLS[peers.protocol]})


CHANGES: dict[str, Callable[[Node, Peers], None]] = {
    "the frontend is removed": lambda node, _: node.delete_entries("frontends"),
    "the backends are removed": lambda node, _: node.delete_entries("backends"),
    "another Service has the frontend": take_frontend,
}


@pytest.mark.parametrize("change", [None, *CHANGES])
def test_a_packet_that_may_try_a_backend_keeps_another_one_while_entries_change(
    node: Node, tcp_peers: Peers, change: str | None
) -> None:
    tried = Tried(node, tcp_peers)
    tried.on_trial()
    node.node_address(address_of(tcp_peers.vip), nodeports=True)
    opening = tcp(tried.client(0), tcp_peers.vip)
    stopped(node, "step_revise", opening)
    if change:
        CHANGES[change](node, tcp_peers)
    verdict, out = node.run("step_revise", opening)
    assert verdict == UNSPEC
    assert same(out, tcp(tried.client(0), tried.well if change else tried.sick[0]))


def test_a_backend_on_trial_that_is_full_is_not_tried(node: Node, tcp_peers: Peers) -> None:
    limited = Limited(node, tcp_peers)
    limited.write(2, {"quarantine": "1 failure/10s for 30s"}, trial=[1])
    limited.put([(0, 0), (LIMIT, 0)])
    assert limited.begin(2000) == 0
    limited.put([(0, 0), (LIMIT - 1, 0)])
    assert limited.begin(2001) == 1


@pytest.mark.parametrize("changed", ["", "frontends", "candidates"])
def test_a_packet_keeps_a_backend_that_is_full_while_entries_change(
    node: Node, changed: str
) -> None:
    """Without a change it is refused, as all backends are full."""
    limited = Limited(node, TCP_PEERS[0])
    limited.write(2)
    limited.put([(LIMIT, 0)] * 2)
    node.node_address(address_of(limited.peers.vip), nodeports=True)
    stopped(node, "step_revise", limited.first(2000))
    if changed:
        node.delete_entries(changed)
    verdict, out = node.run("step_revise", limited.first(2000))
    assert limited.full_counted() == (not changed)
    assert (verdict == UNSPEC) == bool(changed)
    if changed:
        assert out.payload.dport - FIRST_PORT in (0, 1)


@pytest.mark.parametrize("changed", [False, True])
def test_a_packet_keeps_a_backend_that_is_full_while_the_one_with_room_goes(
    node: Node, changed: bool
) -> None:
    limited = Limited(node, TCP_PEERS[0])
    limited.write(2)
    chosen = set()
    for port in range(2000, 2020):
        limited.put([(LIMIT, 0), (0, 0)])
        packet = limited.first(port)
        stopped(node, "step_revise", packet)
        backends = node.pinned.map("backends")
        before = dict(backends.items())
        if changed:
            node.delete_entries("backends")
        verdict, out = node.run("step_revise", packet)
        assert verdict == UNSPEC
        chosen.add(out.payload.dport - FIRST_PORT)
        backends.update_many(before.items())
    assert chosen == ({0, 1} if changed else {1})


@pytest.mark.parametrize("changed", ["", "service", "generation"])
def test_a_packet_that_overflows_tries_no_backend_of_what_another_entry_says(
    node: Node, tcp_peers: Peers, changed: str
) -> None:
    """Whether a far backend may be tried was decided for the entry before."""
    loaded = spilling(node, tcp_peers, "lc", trial=(5,))
    loaded.put([(9, 0), (9, 0), *[(0, 0)] * 4])
    packet = tcp_peers.opening(loaded.client(2000), tcp_peers.vip)
    stopped(node, "step_revise", packet)
    if changed:
        key = frontend_key(node, tcp_peers, tcp_peers.vip)
        layout = node.pinned.layout.maps["frontends"].value
        was = layout.unpack(node.pinned.map("frontends").lookup(key) or b"")[changed]
        node.set_fields("frontends", **{changed: int(was) + 1})
    verdict, out = node.run("step_revise", packet)
    assert verdict == UNSPEC
    number = out.payload.dport - FIRST_PORT
    assert number in ((2, 3, 4) if changed else (5,))


def test_connections_do_not_overflow_while_the_entry_for_that_is_missing(
    node: Node, tcp_peers: Peers
) -> None:
    loaded = spilling(node, tcp_peers, "lc")
    loaded.put([(9, 0), (9, 0), *[(0, 0)] * 4])
    assert loaded.open(2000) == NEAR
    node.delete_entries("spills")
    assert {loaded.open(port) for port in range(2001, 2010)} <= {0, 1}


def test_an_address_keeps_no_new_backend_while_the_entries_to_compare_are_missing(
    counted_ipv4: Loaded,
) -> None:
    counted_ipv4.program(Schedule.LBLC, (4, 4, 4))
    counted_ipv4.put([(3, 0), (2, 0), (3, 0)])
    before = counted_ipv4.node.pinned.map("localities").items()
    known = dict(before)
    counted_ipv4.node.delete_entries("candidates")
    assert counted_ipv4.open(2000) in range(3)
    assert dict(counted_ipv4.node.pinned.map("localities").items()) == known


def test_the_loads_of_as_many_backends_as_are_compared_at_most_are_added_up(
    node: Node, tcp_peers: Peers
) -> None:
    """Only those of the last one make the near endpoints overflow, or not."""
    compared = node.pinned.layout.constant("SPILL_COMPARED")
    loaded = spilling(node, tcp_peers, "lc", count=compared)
    few = [(1, 0)] * NEAR + [(0, 0)] * (compared - NEAR)
    loaded.put(few)
    assert loaded.open(2000) in range(NEAR, compared)
    loaded.put([*few[:-1], (compared, 0)])
    assert loaded.open(2001) in range(NEAR)


def test_explain_says_that_a_connection_overflows(node: Node, tcp_peers: Peers) -> None:
    loaded = spilling(node, tcp_peers, "lc")
    source, destination = address_of(tcp_peers.client), address_of(tcp_peers.vip)
    asked = question("pod", source, tcp_peers.protocol, destination, 80)
    for near, overflows in ((0, False), (9, True)):
        loaded.put([(near, 0), (near, 0), *[(1, 0)] * (ALL - NEAR)])
        said = decide(node.pinned, asked, node.interface)
        assert said.verdict == "dnat"
        assert said.spilled == overflows
        assert (said.backend[1] - FIRST_PORT >= NEAR) == overflows


@pytest.mark.usefixtures("one_cpu")
def test_explain_says_so_of_no_other_service(node: Node, tcp_peers: Peers) -> None:
    """Also if it was asked of one that overflows just before."""
    loaded = spilling(node, tcp_peers, "lc")
    loaded.put([(9, 0)] * NEAR + [(1, 0)] * (ALL - NEAR))
    tcp_peers.service(node, [tcp_peers.other_backend], "other", frontends=[tcp_peers.other_vip])
    source = address_of(tcp_peers.client)
    for vip, overflows in ((tcp_peers.vip, True), (tcp_peers.other_vip, False)):
        asked = question("pod", source, tcp_peers.protocol, address_of(vip), 80)
        said = decide(node.pinned, asked, node.interface)
        assert (said.verdict, said.spilled) == ("dnat", overflows)


def test_a_backend_whose_traffic_is_not_counted_serves(node: Node, peers: Peers) -> None:
    """Entry 0 of the counters is no backend's."""
    client, vip, backend = peers.served(node)
    node.set_fields("backends", counters=0)
    before = counted(node)
    seen = peers.connect(node, client, vip, backend)
    assert same(node.forward(peers.data(backend, seen)), peers.data(vip, client))
    assert counted(node) == before


def counted(node: Node) -> list[bytes]:
    """Return what is counted of each backend."""
    none = bytes(4)
    return [value for key, value in node.pinned.map("backend_counters").items() if key != none]


def test_while_it_is_not_known_what_overflows_no_backend_on_trial_is_tried(
    node: Node, tcp_peers: Peers
) -> None:
    """Near ones are tried at any time, but which are near says an entry that is not there."""
    loaded = spilling(node, tcp_peers, "lc", trial=(1, 5))
    loaded.put([(0, 0)] * ALL)
    node.delete_entries("spills")
    assert {loaded.open(port) for port in range(2000, 2010)} == {0}


def test_a_backend_opens_a_connection_whose_entry_goes_meanwhile(
    node: Node, tcp_peers: Peers
) -> None:
    """It was closed, and had the same ports."""
    client, vip, backend, seen = tcp_peers.connected(node)
    tcp_peers.close(node, client, vip, backend, seen)
    opening = tcp_peers.opening(backend, client)
    with without_step(node, "step_first"):
        node.run("egress", opening)
    node.delete_entries("connections")
    verdict, after = node.run("step_first", opening)
    assert verdict == UNSPEC
    assert same(after, opening)
    assert node.counter("connections_reopened") == 0
