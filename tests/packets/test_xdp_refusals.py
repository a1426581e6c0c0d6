"""A driver that refuses XDP is not tried again and again: an attempt may take its link down."""

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

from bpfsvc.agent.node.xdp import XdpAttachments
from bpfsvc.base.address import pack
from bpfsvc.datapath import syscall
from bpfsvc.datapath.netlink.devices import DeviceAddress
from bpfsvc.devtools.lab import links
from bpfsvc.devtools.lab.namespace import Namespace
from tests.packets.node import Node
from tests.packets.xdp_links import external, follow, follow_as, programs, two_links

SET_MTU, ETHTOOL = 0x8922, 0x8946
"""SIOCSIFMTU, SIOCETHTOOL."""
SET_FLAGS, SET_CHANNELS = 0x26, 0x3D
"""ETHTOOL_SFLAGS, ETHTOOL_SCHANNELS."""

UPLINK = {"kind": "", "addresses": (DeviceAddress(pack("192.0.2.1"), 24, 0, True),)}
"""Attributes of a hardware interface with an address, which ``auto`` chooses."""


class Drivers:
    """Drivers that answer an attempt with the error ``code``; 0: the real drivers."""

    def __init__(self, code: int) -> None:
        self.code = code
        self.attempts: list[int] = []
        self._attach = syscall.link_create

    def __call__(self, program: int, index: int, kind: int, flags: int) -> int:
        self.attempts.append(index)
        if self.code:
            raise OSError(self.code, os.strerror(self.code))
        return self._attach(program, index, kind, flags)


@pytest.fixture
def netns(node: Node) -> Iterator[Namespace]:
    """Enter the namespace of a node with the interfaces ``one`` and ``two``."""
    with two_links(node) as here:
        yield here


@pytest.fixture
def drivers(monkeypatch: pytest.MonkeyPatch) -> Drivers:
    """Drivers that refuse with the error that ice returns when it has too few queues."""
    made = Drivers(errno.ENOMEM)
    monkeypatch.setattr(syscall, "link_create", made)
    return made


def test_a_driver_that_refuses_is_not_tried_again(
    node: Node, netns: Namespace, drivers: Drivers, caplog: pytest.LogCaptureFixture
) -> None:
    attachments = XdpAttachments(("one",), node.installation)
    with caplog.at_level(logging.WARNING):
        for _ in range(10):
            follow(attachments)
            assert attachments.check() == []
    assert drivers.attempts == [netns.index("one")]
    reason = "its driver refuses: Cannot allocate memory"
    assert attachments.declined == {"one": reason}
    assert caplog.messages == [f"one is not served by XDP: {reason}"]


def test_a_driver_that_refused_is_not_tried_again_when_its_link_goes_down_and_up(
    node: Node, netns: Namespace, drivers: Drivers, caplog: pytest.LogCaptureFixture
) -> None:
    """A network manager may remove the address meanwhile."""
    attachments = XdpAttachments(("auto",), node.installation)
    with caplog.at_level(logging.WARNING):
        for _ in range(3):
            follow_as(attachments, {"one": UPLINK})
            attachments.check()
            assert list(attachments.declined) == ["one"]
            netns.netlink.link("set", index=netns.index("one"), state="down")
            follow_as(attachments, {"one": UPLINK | {"addresses": ()}})
            attachments.check()
            assert attachments.declined == {}
            netns.netlink.link("set", index=netns.index("one"), state="up")
    assert drivers.attempts == [netns.index("one")]
    assert len(caplog.messages) == 1


def ethtool(*words: int) -> None:
    """Send ``three`` the ioctl of ``ethtool`` with a command and its numbers."""
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
def test_a_driver_is_tried_once_under_each_condition(
    node: Node, netns: Namespace, drivers: Drivers, change: Callable[[bool], None]
) -> None:
    """A DHCP client, for example, may change the MTU when the link goes down and up."""
    queues = {"num_rx_queues": 2, "num_tx_queues": 2}
    peer = {"ifname": "far"} | queues
    netns.netlink.link("add", ifname="three", kind="veth", peer=peer, **queues)
    attachments = XdpAttachments(("three",), node.installation)
    follow(attachments)
    for back in (False, True, False, True):
        change(back)
        for _ in range(3):
            follow(attachments)
            attachments.check()
    assert drivers.attempts == [netns.index("three")] * 2


def test_a_driver_is_tried_again_after_the_cause_of_its_refusal_changed(
    node: Node, netns: Namespace, drivers: Drivers
) -> None:
    attachments = XdpAttachments(("one",), node.installation)
    follow(attachments)
    drivers.code = 0
    attachments.check()
    assert programs(netns, "one") == (), "nothing showed that the driver would accept now"
    netns.netlink.link("set", index=netns.index("one"), mtu=1400)
    attachments.check()
    assert (attachments.served, attachments.declined, len(drivers.attempts)) == (["one"], {}, 2)


def test_an_interface_that_was_made_again_is_tried_again(
    node: Node, netns: Namespace, drivers: Drivers
) -> None:
    attachments = XdpAttachments(("one",), node.installation)
    follow(attachments)
    before = netns.index("one")
    netns.netlink.link("del", index=before)
    links.cable(netns, "one", netns, "far")
    follow(attachments)
    assert drivers.attempts == [before, netns.index("one")]


def test_the_next_agent_tries_again(node: Node, netns: Namespace, drivers: Drivers) -> None:
    follow(XdpAttachments(("one",), node.installation))
    follow(XdpAttachments(("one",), node.installation))
    assert drivers.attempts == [netns.index("one")] * 2


def test_a_bond_with_another_port_is_tried_again(
    node: Node, netns: Namespace, drivers: Drivers
) -> None:
    """A bond passes the program to its ports."""
    attachments = XdpAttachments(("two",), node.installation)
    two = netns.index("two")
    for master in (0, two, 0):
        follow_as(attachments, {"one": {"master": master}, "two": {"kind": "bond"}})
        attachments.check()
    assert drivers.attempts == [two, two]


def test_an_interface_with_another_programs_xdp_is_not_tried(
    node: Node, netns: Namespace, drivers: Drivers
) -> None:
    attachments = XdpAttachments(("one",), node.installation)
    drivers.code = 0
    with external(netns, "one"):
        drivers.attempts.clear()
        follow(attachments)
        attachments.check()
        assert drivers.attempts == []
    attachments.check()
    assert (drivers.attempts, attachments.served) == ([netns.index("one")], ["one"])


def test_a_program_attached_a_moment_earlier_is_respected(
    node: Node, netns: Namespace, monkeypatch: pytest.MonkeyPatch
) -> None:
    attachments = XdpAttachments(("one",), node.installation)
    attach = syscall.link_create
    with contextlib.ExitStack() as theirs:

        def come_second(*arguments: int) -> int:
            monkeypatch.setattr(syscall, "link_create", attach)
            theirs.enter_context(external(netns, "one"))
            return attach(*arguments)

        monkeypatch.setattr(syscall, "link_create", come_second)
        follow(attachments)
        assert attachments.declined["one"].startswith("another XDP program is there (stranger ")
    attachments.check()
    assert attachments.served == ["one"]


def test_a_driver_that_reports_busy_without_another_program_is_not_tried_again(
    node: Node, netns: Namespace, drivers: Drivers
) -> None:
    drivers.code = errno.EBUSY
    attachments = XdpAttachments(("one",), node.installation)
    follow(attachments)
    attachments.check()
    assert drivers.attempts == [netns.index("one")]
    assert attachments.declined == {"one": "another XDP program is there (which cannot be seen)"}
