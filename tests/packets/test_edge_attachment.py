"""XDP comes to the interfaces it shall serve, and leaves them, whoever else is there."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator

import pytest

from bpfsvc.address import pack
from bpfsvc.datapath import bpf, xdp
from bpfsvc.datapath.netlink.devices import DeviceAddress
from bpfsvc.datapath.netlink.hooks import DeviceGone
from bpfsvc.edge import Edge
from bpfsvc.lab import links
from bpfsvc.lab.namespace import Namespace
from tests.packets.cables import follow, follow_as, laid, network, programs, rows, stranger
from tests.packets.node import Node


@pytest.fixture
def place(node: Node) -> Iterator[Namespace]:
    """The namespace of a node with the interfaces ``one`` and ``two``, for the calling thread."""
    with laid(node) as here:
        yield here


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


UPLINK = {"kind": "", "addresses": (DeviceAddress(pack("192.0.2.1"), 24, 0, True),)}
"""As hardware with an address, which ``auto`` takes."""


def test_what_is_served_stays_so_while_its_link_goes_down_and_up(
    node: Node, place: Namespace
) -> None:
    """Whoever manages the network may take the address away meanwhile.

    Would the program be taken off then, some drivers would take the link down again, and so on.
    """
    edge = Edge(("auto",), node.installation)
    follow_as(edge, {"one": UPLINK})
    attached = bpf.get(node.root.links / f"xdp-{place.index('one')}")
    try:
        follow_as(edge, {"one": UPLINK | {"addresses": ()}})
        assert bpf.link_ifindex(attached) == place.index("one")
    finally:
        os.close(attached)
    assert edge.served == ["one"]
    assert rows(node) == {place.index("one")}
    follow_as(edge, {"one": UPLINK | {"master": place.index("two")}})
    assert (edge.served, programs(place, "one")) == ([], ())
