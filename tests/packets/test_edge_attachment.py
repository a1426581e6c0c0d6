"""XDP comes to the interfaces it shall serve, and leaves them, whoever else is there."""

from __future__ import annotations

import logging
import os
import struct
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from bpfsvc.datapath import bpf, creation, xdp
from bpfsvc.datapath.netlink.conversation import Conversation
from bpfsvc.datapath.netlink.details import read_details
from bpfsvc.datapath.netlink.devices import Network, choose
from bpfsvc.datapath.netlink.hooks import DeviceGone
from bpfsvc.datapath.netlink.network import read_network
from bpfsvc.edge import Edge
from bpfsvc.lab import links
from bpfsvc.lab.namespace import Namespace
from tests.packets.node import Node

XDP, XDP_PASS, DRIVER_MODE = 6, 2, 1 << 2
"""BPF_PROG_TYPE_XDP, its verdict, XDP_FLAGS_DRV_MODE."""


@pytest.fixture
def place(node: Node) -> Iterator[Namespace]:
    """The namespace of a node with the interfaces ``one`` and ``two``, for the calling thread."""
    here, there = Namespace("edge-here"), Namespace("edge-there")
    try:
        for name in ("one", "two"):
            links.cable(here, name, there, name)
        with here.entered():
            yield here
            for index in xdp.attached(node.root):
                xdp.detach(node.root, index)
            node.pinned.map("uplinks").replace({})
    finally:
        here.close()
        there.close()


@contextmanager
def stranger(place: Namespace, name: str) -> Iterator[int]:
    """Put an XDP program of somebody else on an interface; give its id."""
    code = struct.pack("=BBhiBBhi", 0xB7, 0, 0, XDP_PASS, 0x95, 0, 0, 0)
    program = creation.load_program("stranger", XDP, xdp.ATTACH_TYPE, code, "GPL")
    link = bpf.link_create(program, place.index(name), xdp.ATTACH_TYPE, DRIVER_MODE)
    try:
        yield bpf.program_id(program)
    finally:
        os.close(program)
        os.close(link)


def network() -> Network:
    talk = Conversation()
    try:
        return read_network(talk)
    finally:
        talk.close()


def follow(edge: Edge) -> None:
    now = network()
    edge.follow(now, choose(now.devices))


def programs(place: Namespace, name: str) -> tuple[int, ...]:
    """Give the ids of the XDP programs on an interface, as the kernel tells everybody."""
    talk = Conversation()
    try:
        return read_details(talk)[place.index(name)].xdp
    finally:
        talk.close()


def rows(node: Node) -> set[int]:
    """Give the interfaces that the program knows."""
    return {struct.unpack("=I", key)[0] for key, _ in node.pinned.map("uplinks").items()}


def test_it_comes_where_it_is_asked_for_and_goes_with_the_wish(
    node: Node, place: Namespace
) -> None:
    ours = bpf.program_id(node.pinned.program("edge"))
    edge = Edge(("one", "two"), node.installation)
    follow(edge)
    assert edge.served == ["one", "two"]
    assert programs(place, "one") == programs(place, "two") == (ours,)
    assert rows(node) == {place.index("one"), place.index("two")}
    follow(Edge(("one",), node.installation))
    assert (programs(place, "one"), programs(place, "two")) == ((ours,), ())
    assert rows(node) == {place.index("one")}
    follow(Edge((), node.installation))
    assert programs(place, "one") == ()
    assert rows(node) == set()


@pytest.mark.usefixtures("place")
def test_the_next_agent_takes_over_what_is_there(node: Node) -> None:
    follow(Edge(("one",), node.installation))
    before = xdp.attached(node.root)
    after = Edge(("one",), node.installation)
    follow(after)
    assert (after.served, after.declined) == (["one"], {})
    assert xdp.attached(node.root) == before
    assert after.check() == []


def test_an_interface_that_goes_and_comes_again_is_served_again(
    node: Node, place: Namespace
) -> None:
    edge = Edge(("one", "three"), node.installation)
    follow(edge)
    links.cable(place, "three", place, "far")
    follow(edge)
    assert edge.served == ["one", "three"]
    index = place.index("three")
    place.netlink.link("del", index=index)
    follow(edge)
    assert edge.served == ["one"]
    assert index not in rows(node)
    assert set(xdp.attached(node.root)) == {place.index("one")}
    with pytest.raises(DeviceGone):
        xdp.attach(node.root, index, node.pinned.program("edge"))
    links.cable(place, "three", place, "far")
    follow(edge)
    assert edge.served == ["one", "three"]


def test_another_hardware_address_is_learnt(node: Node, place: Namespace) -> None:
    edge = Edge(("one",), node.installation)
    follow(edge)
    place.netlink.link("set", index=place.index("one"), address="02:00:00:00:00:77")
    follow(edge)
    record = node.pinned.layout.maps["uplinks"].value
    ((_, raw),) = node.pinned.map("uplinks").items()
    assert record.unpack(raw)["mac"] == bytes.fromhex("020000000077")


def test_a_program_of_somebody_else_stays_and_is_told_once(
    node: Node, place: Namespace, caplog: pytest.LogCaptureFixture
) -> None:
    edge = Edge(("one", "two"), node.installation)
    with stranger(place, "one") as theirs, caplog.at_level(logging.WARNING):
        for _ in range(3):
            follow(edge)
            assert edge.check() == []
        assert programs(place, "one") == (theirs,)
        assert edge.served == ["two"]
        reason = f"another XDP program is there (stranger {theirs})"
        assert edge.declined == {"one": reason}
        assert caplog.messages == [f"one is not served by XDP: {reason}"]
        assert rows(node) == {place.index("two")}
    assert edge.check() == []
    assert edge.served == ["one", "two"], "once it has gone, the place is taken"
    assert edge.declined == {}
    assert rows(node) == {place.index("one"), place.index("two")}


def test_a_driver_without_native_xdp_is_told(node: Node, place: Namespace) -> None:
    links.bridge(place, "plain")
    edge = Edge(("plain",), node.installation)
    now = network()
    edge.follow(now, [device for device in now.devices if device.name == "plain"])
    assert edge.served == []
    assert edge.declined == {"plain": "its driver has no native XDP"}


def test_a_program_that_was_taken_away_is_missed_and_comes_back(
    node: Node, place: Namespace
) -> None:
    edge = Edge(("one",), node.installation)
    follow(edge)
    xdp.detach(node.root, place.index("one"))
    assert edge.check() == ["one (XDP)"]
    assert rows(node) == set()
    assert edge.check() == []
    follow(edge)
    assert edge.served == ["one"]
    assert len(programs(place, "one")) == 1
