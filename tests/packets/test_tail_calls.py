"""Programs jump to others; without them, what is for a Service is dropped, and nothing else.

All of them go at once when the last pin is removed while no agent runs and filters stay attached.
"""

from __future__ import annotations

import struct
import sys
from collections.abc import Callable, Iterator

import pytest
from scapy.layers.inet import ICMP
from scapy.layers.inet6 import IPv6ExtHdrHopByHop
from scapy.packet import Packet

from bpfsvc.services.entries import Policies, Policy
from bpfsvc.services.scheduling.schedulers import Schedule
from tests.packets.extension_headers import with_headers
from tests.packets.icmp_errors import error
from tests.packets.loads import Loaded
from tests.packets.node import SHOT, UNSPEC, Node
from tests.packets.packet import ip
from tests.packets.peers import SCTP_PEERS, TCP_PEERS, UDP_PEERS, Peers, address_of
from tests.packets.refusals import refused
from tests.packets.test_echo import ECHO, ping

TCP4, TCP6 = TCP_PEERS
UDP4, SCTP4 = UDP_PEERS[0], SCTP_PEERS[0]


@pytest.fixture
def without(node: Node) -> Iterator[Callable[[str], None]]:
    """Return a function that removes a tail call until the end of the test."""
    table = node.pinned.map("steps")
    fast_packets: list[str] = []

    def take(name: str) -> None:
        assert table.delete(index_of(node, name))
        fast_packets.append(name)

    yield take
    for name in fast_packets:
        program = node.pinned.program(name).to_bytes(4, sys.byteorder)
        table.update(index_of(node, name), program)


def index_of(node: Node, step: str) -> bytes:
    """Return the key of a step in the map ``steps``."""
    return struct.pack("=I", node.pinned.layout.constant(step.upper()))


def masqueraded(node: Node, peers: Peers) -> str:
    peers.service(node, [peers.backend], masquerade=True)
    return peers.connect(node, peers.external, peers.vip, peers.backend)


def first(node: Node, peers: Peers) -> tuple[str, Packet]:
    peers.service(node, [peers.backend])
    return "ingress", peers.opening(peers.client, peers.vip)


def careful(node: Node, peers: Peers) -> tuple[str, Packet]:
    masqueraded(node, peers)
    node.age(2)
    return "ingress", peers.data(peers.external, peers.vip)


def shortcut(node: Node, peers: Peers) -> tuple[str, Packet]:
    """Make a packet of a fast connection need care, after which it would be fast again."""
    prepared = careful(node, peers)
    node.settings(fast_path=1)
    table = node.pinned.map("connections")
    record = node.pinned.layout.maps["connections"].value
    for key, value in list(table.items()):
        table.update(key, record.pack({**record.unpack(value), "shortcut": node.interface}))
    return prepared


def masquerade(node: Node, peers: Peers) -> tuple[str, Packet]:
    peers.service(node, [peers.backend], masquerade=True)
    return "egress", node.ingress(peers.opening(peers.external, peers.vip))


def icmp(node: Node, peers: Peers) -> tuple[str, Packet]:
    masqueraded(node, peers)
    reply = peers.data(peers.vip, peers.external)
    return "ingress", error(peers.router, address_of(peers.vip), reply)


def unusual(node: Node, peers: Peers) -> tuple[str, Packet]:
    masqueraded(node, peers)
    data = peers.data(peers.external, peers.vip)
    return "ingress", with_headers(data, IPv6ExtHdrHopByHop())


def rewrite(node: Node, peers: Peers) -> tuple[str, Packet]:
    masqueraded(node, peers)
    return "ingress", peers.data(peers.external, peers.vip)


def reject(node: Node, peers: Peers) -> tuple[str, Packet]:
    peers.service(node, [])
    return "ingress", peers.opening(peers.client, peers.vip)


def echo(node: Node, peers: Peers) -> tuple[str, Packet]:
    peers.service(node, [peers.backend], policies=ECHO)
    return "ingress", ping(peers.client, peers.vip)


def schedule(node: Node, peers: Peers) -> tuple[str, Packet]:
    Loaded(node, peers).program(Schedule.LBLC, (1, 1))
    return "ingress", peers.opening(peers.client, peers.vip)


def attempt(node: Node, peers: Peers) -> tuple[str, Packet]:
    policy = Policy(0, 1, False, False)
    policies = Policies(policy, policy, policy, watched=True)
    peers.service(node, [peers.backend], policies=policies)
    peers.begin(node, peers.client, peers.vip, peers.backend)
    return "ingress", peers.proof(peers.client, peers.vip, peers.backend, peers.client)[0]


def trial(node: Node, peers: Peers) -> tuple[str, Packet]:
    policy = Policy(0, 1, False, False, 0, 1)
    policies = Policies(policy, policy, policy, watched=True)
    peers.service(node, [peers.backend, peers.other_backend], policies=policies)
    return "ingress", peers.opening(peers.client, peers.vip)


def as_it_is(node: Node, peers: Peers) -> tuple[str, Packet]:
    peers.service(node, [peers.backend])
    node.settings(first=20000, ports=20000, fast_path=1, fast_outside=1)
    return "ingress", peers.opening(peers.with_port(peers.external, 20007), peers.backend)


NEEDS = {
    "step_first": (first, TCP4),
    "step_open": (first, TCP4),
    "step_established": (careful, TCP4),
    "step_icmp": (icmp, TCP4),
    "step_parse_slow": (unusual, TCP6),
    "step_rewrite": (rewrite, SCTP4),
    "step_reject": (reject, TCP4),
    "step_masquerade": (masquerade, TCP4),
    "step_fast_path": (shortcut, TCP4),
    "step_echo": (echo, TCP4),
    "step_schedule": (schedule, TCP4),
    "step_attempt": (attempt, TCP4),
    "step_revise": (trial, TCP4),
    "step_untranslated": (as_it_is, TCP4),
}


def test_there_is_a_case_for_each_step(node: Node) -> None:
    steps = node.pinned.layout.constants_named("STEP_").values()
    assert {f"step_{name}" for name in steps} == set(NEEDS)


@pytest.mark.parametrize("name", NEEDS)
def test_a_packet_that_needs_a_missing_program_is_dropped_and_counted(
    node: Node, without: Callable[[str], None], name: str
) -> None:
    prepare, peers = NEEDS[name]
    hook, packet = prepare(node, peers)
    without(name)
    assert node.run(hook, packet)[0] == SHOT
    assert node.counter("dropped__step_missing") == 1


def test_a_packet_of_an_established_connection_needs_no_tail_call(
    node: Node, without: Callable[[str], None]
) -> None:
    seen = masqueraded(node, TCP4)
    for name in NEEDS:
        without(name)
    node.age(0)  # a pause of a second would need one
    node.forward(TCP4.data(TCP4.external, TCP4.vip))
    node.forward(TCP4.data(TCP4.backend, seen))
    assert node.counter("dropped__step_missing") == 0


@pytest.mark.parametrize(
    "schedule",
    [schedule for schedule in Schedule if not schedule.is_local],
    ids=lambda schedule: schedule.name.lower(),
)
def test_a_schedule_that_keeps_no_address_needs_no_step_of_its_own(
    node: Node, without: Callable[[str], None], schedule: Schedule
) -> None:
    service = Loaded(node, TCP4)
    service.program(schedule, (1, 1))
    without("step_schedule")
    assert service.open(2000) is not None


def test_a_ping_to_another_node_needs_only_the_first_tail_call(
    node: Node, without: Callable[[str], None]
) -> None:
    for name in set(NEEDS) - {"step_first"}:
        without(name)
    ping = ip(address_of(TCP4.client), TCP4.router) / ICMP()
    assert node.run("ingress", ping)[0] == UNSPEC


def test_all_tail_calls_are_restored_for_other_tests(node: Node) -> None:
    assert refused(node, reject(node, TCP4)[1])
    table = node.pinned.map("steps")
    assert all(table.lookup(index_of(node, name)) for name in NEEDS)
    assert len(NEEDS) == table.max_entries - node.pinned.layout.constant("REPLACED_PROGRAMS")
