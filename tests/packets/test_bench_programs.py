"""The benchmark measures programs on packets that really take the path in question."""

from __future__ import annotations

import socket

import pytest
from scapy.layers.inet import TCP, UDP
from scapy.layers.l2 import Ether

from bpfsvc.devtools.bench.packets.crossing import V4, V6, Crossing, CrossingTestbed, WrongPath
from bpfsvc.devtools.bench.packets.flows import SYN, Place
from bpfsvc.devtools.bench.packets.test_runs import repeat
from bpfsvc.devtools.bench.suites.programs import measure
from tests.packets.node import Node

PROTOCOLS = {socket.IPPROTO_TCP: TCP, socket.IPPROTO_UDP: UDP}


@pytest.fixture(params=PROTOCOLS, ids=["TCP", "UDP"])
def protocol(request: pytest.FixtureRequest) -> int:
    return int(request.param)


@pytest.fixture(params=[V4, V6], ids=["IPv4", "IPv6"])
def crossing(request: pytest.FixtureRequest, protocol: int) -> Crossing:
    ends = request.param
    front, back = Place(ends.front, 80), Place(ends.back, 8080)
    return Crossing(Place(ends.client, 40001), front, back, protocol)


@pytest.fixture
def testbed(node: Node) -> CrossingTestbed:
    return CrossingTestbed(node.pinned)


def test_frames_are_whole_and_their_checksums_right(crossing: Crossing) -> None:
    flow = crossing.to(crossing.front)
    frame = flow.frame()
    parsed = Ether(frame)
    transport = parsed[PROTOCOLS[flow.protocol]]
    assert (parsed.payload.src, transport.sport) == flow.source
    assert (parsed.payload.dst, transport.dport) == flow.destination
    for layer in (parsed.payload, transport):
        if hasattr(layer, "chksum"):
            del layer.chksum
    assert bytes(parsed) == frame


@pytest.mark.parametrize("masqueraded", [False, True], ids=["as the client", "masqueraded"])
def test_a_packet_is_translated_each_time_it_is_run(
    node: Node, testbed: CrossingTestbed, crossing: Crossing, masqueraded: bool
) -> None:
    """Both directions, at both hooks; all are counted as traffic of the two backends."""
    leaves_as = Place(V6.node if crossing.client.address == V6.client else V4.node, 61001)
    if masqueraded:
        crossing = crossing._replace(leaves_as=leaves_as)
    testbed.cross(crossing)
    there, routed = crossing.to(crossing.front), crossing.to(crossing.back)
    before = testbed.counted()
    for hook, one, other in (
        ("ingress", there, routed),
        ("egress", routed.reply, there.reply),
    ):
        for times, after in ((100, one), (101, other)):
            run = repeat(node.pinned.program(hook), one.frame(), times, testbed.context)
            assert run.packet == after.frame()
    assert testbed.counted() - before == 2 * 201
    if masqueraded:
        wire = routed._replace(source=leaves_as)
        for hook, one, other in (
            ("egress", routed, wire),
            ("ingress", wire.reply, routed.reply),
        ):
            for times, after in ((100, one), (101, other)):
                run = repeat(node.pinned.program(hook), one.frame(), times, testbed.context)
                assert run.packet == after.frame()


def test_every_path_costs_something_and_has_an_empty_program_beside_it(node: Node) -> None:
    cells = measure(node.pinned, lambda _: None, rounds=2, repeats=2000)
    ours = {cell.kind: cell for cell in cells if cell.mode != "empty"}
    empty = {cell.kind: cell for cell in cells if cell.mode == "empty"}
    assert ours.keys() == empty.keys()
    assert all(len(cell.values) == 2 and min(cell.values) > 0 for cell in cells)
    translated = [kind for kind in ours if kind.startswith(("established", "forwarded"))]
    assert [ours[kind].mode for kind in translated] == ["default"] * 17 + ["xdp"] * 6
    assert all(ours[kind].median > empty[kind].median for kind in translated)


def test_two_crossings_of_one_client_to_one_backend_cannot_be_measured(
    testbed: CrossingTestbed, crossing: Crossing
) -> None:
    """The second leaves by another port, so its packets are not the expected ones."""
    testbed.cross(crossing)
    with pytest.raises(WrongPath, match=r"ingress: a packet of .* does not become"):
        testbed.cross(crossing._replace(front=Place(crossing.front.address, 81)))


@pytest.mark.parametrize("protocol", [socket.IPPROTO_TCP], ids=["TCP"], indirect=True)
def test_without_a_crossing_a_repeated_packet_is_translated_once(
    node: Node, testbed: CrossingTestbed, crossing: Crossing
) -> None:
    """This is the reason for crossings."""
    testbed.serve(crossing.front, crossing.back, crossing.protocol)
    ingress, there = node.pinned.program("ingress"), crossing.to(crossing.front)
    before = testbed.counted()
    repeat(ingress, there.frame(SYN), 1, testbed.context)
    run = repeat(ingress, there.frame(), 100, testbed.context)
    assert run.packet == crossing.to(crossing.back).frame()
    assert testbed.counted() - before == 2
