"""The cost of programs is measured on packets that really take the path they are said to take."""

from __future__ import annotations

import socket

import pytest
from scapy.layers.inet import TCP, UDP
from scapy.layers.l2 import Ether

from bpfsvc.bench.packets.crossing import V4, V6, Crossing, Stage, WrongPath
from bpfsvc.bench.packets.flows import SYN, Place
from bpfsvc.bench.packets.testruns import repeat
from bpfsvc.bench.suites.programs import measure
from tests.packets.node import Node

PROTOCOLS = {socket.IPPROTO_TCP: TCP, socket.IPPROTO_UDP: UDP}


@pytest.fixture(params=PROTOCOLS, ids=["TCP", "UDP"])
def protocol(request: pytest.FixtureRequest) -> int:
    return int(request.param)


@pytest.fixture(params=[V4, V6], ids=["IPv4", "IPv6"])
def way(request: pytest.FixtureRequest, protocol: int) -> Crossing:
    ends = request.param
    front, back = Place(ends.front, 80), Place(ends.back, 8080)
    return Crossing(Place(ends.client, 40001), front, back, protocol)


@pytest.fixture
def stage(node: Node) -> Stage:
    return Stage(node.pinned)


def test_frames_are_whole_and_their_checksums_right(way: Crossing) -> None:
    flow = way.to(way.front)
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
    node: Node, stage: Stage, way: Crossing, masqueraded: bool
) -> None:
    """To and fro, at both hooks, and all of it is counted as traffic of the two backends."""
    leaves_as = Place(V6.node if way.client.address == V6.client else V4.node, 61001)
    if masqueraded:
        way = way._replace(leaves_as=leaves_as)
    stage.cross(way)
    there, routed = way.to(way.front), way.to(way.back)
    before = stage.counted()
    for hook, one, other in (
        ("ingress", there, routed),
        ("egress", routed.answer, there.answer),
    ):
        for times, after in ((100, one), (101, other)):
            run = repeat(node.pinned.program(hook), one.frame(), times, stage.context)
            assert run.packet == after.frame()
    assert stage.counted() - before == 2 * 201
    if masqueraded:
        wire = routed._replace(source=leaves_as)
        for hook, one, other in (
            ("egress", routed, wire),
            ("ingress", wire.answer, routed.answer),
        ):
            for times, after in ((100, one), (101, other)):
                run = repeat(node.pinned.program(hook), one.frame(), times, stage.context)
                assert run.packet == after.frame()


def test_every_path_costs_something_and_has_an_empty_program_beside_it(node: Node) -> None:
    cells = measure(node.pinned, lambda _: None, rounds=2, repeats=2000)
    ours = {cell.kind: cell for cell in cells if cell.mode != "empty"}
    empty = {cell.kind: cell for cell in cells if cell.mode == "empty"}
    assert ours.keys() == empty.keys()
    assert all(len(cell.values) == 2 and min(cell.values) > 0 for cell in cells)
    translated = [kind for kind in ours if kind.startswith(("established", "forwarded"))]
    assert [ours[kind].mode for kind in translated] == ["tc"] * 17 + ["xdp"] * 6
    assert all(ours[kind].median > empty[kind].median for kind in translated)


def test_two_ways_of_one_client_to_one_backend_cannot_be_measured(
    stage: Stage, way: Crossing
) -> None:
    """The second leaves by another port, so that its packets are not the ones expected."""
    stage.cross(way)
    with pytest.raises(WrongPath, match=r"ingress: a packet of .* does not become"):
        stage.cross(way._replace(front=Place(way.front.address, 81)))


@pytest.mark.parametrize("protocol", [socket.IPPROTO_TCP], ids=["TCP"], indirect=True)
def test_without_a_crossing_a_repeated_packet_is_translated_once(
    node: Node, stage: Stage, way: Crossing
) -> None:
    """Which is why there are crossings."""
    stage.serve(way.front, way.back, way.protocol)
    ingress, there = node.pinned.program("ingress"), way.to(way.front)
    before = stage.counted()
    repeat(ingress, there.frame(SYN), 1, stage.context)
    run = repeat(ingress, there.frame(), 100, stage.context)
    assert run.packet == way.to(way.back).frame()
    assert stage.counted() - before == 2
