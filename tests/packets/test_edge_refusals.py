"""A driver that refuses XDP is not asked again and again: an attempt may take its link down."""

from __future__ import annotations

import contextlib
import ctypes
import errno
import fcntl
import logging
import os
import socket
import struct
from collections.abc import Callable, Iterator

import pytest

from bpfsvc.address import pack
from bpfsvc.datapath import bpf
from bpfsvc.datapath.netlink.devices import DeviceAddress
from bpfsvc.edge import Edge
from bpfsvc.lab import links
from bpfsvc.lab.namespace import Namespace
from tests.packets.cables import follow, follow_as, laid, programs, stranger
from tests.packets.node import Node

SET_MTU, ETHTOOL = 0x8922, 0x8946
"""SIOCSIFMTU, SIOCETHTOOL."""
SET_FLAGS, SET_CHANNELS = 0x26, 0x3D
"""ETHTOOL_SFLAGS, ETHTOOL_SCHANNELS."""

UPLINK = {"kind": "", "addresses": (DeviceAddress(pack("192.0.2.1"), 24, 0, True),)}
"""As hardware with an address, which ``auto`` takes."""


class Drivers:
    """They say what ``code`` says, and note who was asked; with 0 they are those of the kernel."""

    def __init__(self, code: int) -> None:
        self.code = code
        self.asked: list[int] = []
        self._attach = bpf.link_create

    def __call__(self, program: int, index: int, kind: int, flags: int) -> int:
        self.asked.append(index)
        if self.code:
            raise OSError(self.code, os.strerror(self.code))
        return self._attach(program, index, kind, flags)


@pytest.fixture
def place(node: Node) -> Iterator[Namespace]:
    """The namespace of a node with the interfaces ``one`` and ``two``, for the calling thread."""
    with laid(node) as here:
        yield here


@pytest.fixture
def drivers(monkeypatch: pytest.MonkeyPatch) -> Drivers:
    """They refuse with what ice says of too few queues."""
    made = Drivers(errno.ENOMEM)
    monkeypatch.setattr(bpf, "link_create", made)
    return made


def test_a_driver_that_refuses_is_not_asked_again(
    node: Node, place: Namespace, drivers: Drivers, caplog: pytest.LogCaptureFixture
) -> None:
    edge = Edge(("one",), node.installation)
    with caplog.at_level(logging.WARNING):
        for _ in range(10):
            follow(edge)
            assert edge.check() == []
    assert drivers.asked == [place.index("one")]
    reason = "its driver refuses: Cannot allocate memory"
    assert edge.declined == {"one": reason}
    assert caplog.messages == [f"one is not served by XDP: {reason}"]


def test_a_link_that_goes_down_and_up_is_no_reason_to_ask_again(
    node: Node, place: Namespace, drivers: Drivers, caplog: pytest.LogCaptureFixture
) -> None:
    """Whoever manages the network may take the address away meanwhile."""
    edge = Edge(("auto",), node.installation)
    with caplog.at_level(logging.WARNING):
        for _ in range(3):
            follow_as(edge, {"one": UPLINK})
            edge.check()
            assert list(edge.declined) == ["one"]
            place.netlink.link("set", index=place.index("one"), state="down")
            follow_as(edge, {"one": UPLINK | {"addresses": ()}})
            edge.check()
            assert edge.declined == {}
            place.netlink.link("set", index=place.index("one"), state="up")
    assert drivers.asked == [place.index("one")]
    assert len(caplog.messages) == 1


def ethtool(*words: int) -> None:
    """Do to ``three`` what ``ethtool`` does by a command and its numbers."""
    value = (ctypes.c_uint32 * len(words))(*words)
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as control:
        fcntl.ioctl(control, ETHTOOL, struct.pack("@16sP16x", b"three", ctypes.addressof(value)))


def set_mtu(back: bool) -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as control:
        fcntl.ioctl(control, SET_MTU, struct.pack("@16si20x", b"three", 1500 if back else 1400))


def set_queues(back: bool) -> None:
    ethtool(SET_CHANNELS, 0, 0, 0, 0, 2 if back else 1, 2, 0, 0)


def set_offloads(back: bool) -> None:
    ethtool(SET_FLAGS, 0x180 if back else 0x80)  # VLAN tags: both ways, or out only


@pytest.mark.parametrize("change", [set_mtu, set_queues, set_offloads])
def test_a_driver_is_asked_once_under_each_condition(
    node: Node, place: Namespace, drivers: Drivers, change: Callable[[bool], None]
) -> None:
    """A DHCP client, say, may change the MTU to and fro whenever the link goes down and up."""
    queues = {"num_rx_queues": 2, "num_tx_queues": 2}
    peer = {"ifname": "far"} | queues
    place.netlink.link("add", ifname="three", kind="veth", peer=peer, **queues)
    edge = Edge(("three",), node.installation)
    follow(edge)
    for back in (False, True, False, True):
        change(back)
        for _ in range(3):
            follow(edge)
            edge.check()
    assert drivers.asked == [place.index("three")] * 2


def test_what_a_driver_refused_for_may_be_mended(
    node: Node, place: Namespace, drivers: Drivers
) -> None:
    edge = Edge(("one",), node.installation)
    follow(edge)
    drivers.code = 0
    edge.check()
    assert programs(place, "one") == (), "nothing said that it would do now"
    place.netlink.link("set", index=place.index("one"), mtu=1400)
    edge.check()
    assert (edge.served, edge.declined, len(drivers.asked)) == (["one"], {}, 2)


def test_an_interface_that_came_anew_is_asked_for_again(
    node: Node, place: Namespace, drivers: Drivers
) -> None:
    edge = Edge(("one",), node.installation)
    follow(edge)
    before = place.index("one")
    place.netlink.link("del", index=before)
    links.cable(place, "one", place, "far")
    follow(edge)
    assert drivers.asked == [before, place.index("one")]


def test_another_agent_asks_again(node: Node, place: Namespace, drivers: Drivers) -> None:
    follow(Edge(("one",), node.installation))
    follow(Edge(("one",), node.installation))
    assert drivers.asked == [place.index("one")] * 2


def test_a_bond_with_another_port_is_asked_for_again(
    node: Node, place: Namespace, drivers: Drivers
) -> None:
    """It hands the program on to its ports."""
    edge = Edge(("two",), node.installation)
    two = place.index("two")
    for master in (0, two, 0):
        follow_as(edge, {"one": {"master": master}, "two": {"kind": "bond"}})
        edge.check()
    assert drivers.asked == [two, two]


def test_a_place_that_is_taken_is_looked_at_and_not_asked_for(
    node: Node, place: Namespace, drivers: Drivers
) -> None:
    edge = Edge(("one",), node.installation)
    drivers.code = 0
    with stranger(place, "one"):
        drivers.asked.clear()
        follow(edge)
        edge.check()
        assert drivers.asked == []
    edge.check()
    assert (drivers.asked, edge.served) == ([place.index("one")], ["one"])


def test_who_came_first_by_a_moment_is_waited_for(
    node: Node, place: Namespace, monkeypatch: pytest.MonkeyPatch
) -> None:
    edge = Edge(("one",), node.installation)
    attach = bpf.link_create
    with contextlib.ExitStack() as theirs:

        def come_second(*arguments: int) -> int:
            monkeypatch.setattr(bpf, "link_create", attach)
            theirs.enter_context(stranger(place, "one"))
            return attach(*arguments)

        monkeypatch.setattr(bpf, "link_create", come_second)
        follow(edge)
        assert edge.declined["one"].startswith("another XDP program is there (stranger ")
    edge.check()
    assert edge.served == ["one"]


def test_a_driver_that_says_busy_while_nobody_is_there_is_not_asked_again(
    node: Node, place: Namespace, drivers: Drivers
) -> None:
    drivers.code = errno.EBUSY
    edge = Edge(("one",), node.installation)
    follow(edge)
    edge.check()
    assert drivers.asked == [place.index("one")]
    assert edge.declined == {"one": "another XDP program is there (which cannot be seen)"}
