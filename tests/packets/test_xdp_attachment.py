"""XDP is attached to the chosen interfaces and detached, also beside another program's XDP."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator

import pytest

from bpfsvc.agent.node.xdp import XdpAttachments
from bpfsvc.base.address import pack
from bpfsvc.datapath import syscall
from bpfsvc.datapath.attach import xdp
from bpfsvc.datapath.netlink.devices import DeviceAddress
from bpfsvc.datapath.netlink.hooks import DeviceGone
from bpfsvc.devtools.lab import links
from bpfsvc.devtools.lab.namespace import Namespace
from tests.packets.node import Node
from tests.packets.xdp_links import (
    external,
    follow,
    follow_as,
    known_interfaces,
    network,
    programs,
    two_links,
)


@pytest.fixture
def netns(node: Node) -> Iterator[Namespace]:
    """Enter the namespace of a node with the interfaces ``one`` and ``two``."""
    with two_links(node) as here:
        yield here


def test_xdp_is_attached_to_the_chosen_interfaces_and_detached_from_others(
    node: Node, netns: Namespace
) -> None:
    ours = syscall.program_id(node.pinned.program("xdp"))
    attachments = XdpAttachments(("one", "two"), node.installation)
    follow(attachments)
    assert attachments.served == ["one", "two"]
    assert programs(netns, "one") == programs(netns, "two") == (ours,)
    assert known_interfaces(node) == {netns.index("one"), netns.index("two")}
    follow(XdpAttachments(("one",), node.installation))
    assert (programs(netns, "one"), programs(netns, "two")) == ((ours,), ())
    assert known_interfaces(node) == {netns.index("one")}
    follow(XdpAttachments((), node.installation))
    assert programs(netns, "one") == ()
    assert known_interfaces(node) == set()


@pytest.mark.usefixtures("netns")
def test_the_next_agent_takes_over_the_attachments(node: Node) -> None:
    follow(XdpAttachments(("one",), node.installation))
    before = xdp.attached(node.root)
    after = XdpAttachments(("one",), node.installation)
    follow(after)
    assert (after.served, after.declined) == (["one"], {})
    assert xdp.attached(node.root) == before
    assert after.check() == []


def test_an_interface_that_is_removed_and_made_again_is_served_again(
    node: Node, netns: Namespace
) -> None:
    attachments = XdpAttachments(("one", "three"), node.installation)
    follow(attachments)
    links.cable(netns, "three", netns, "far")
    follow(attachments)
    assert attachments.served == ["one", "three"]
    index = netns.index("three")
    netns.netlink.link("del", index=index)
    follow(attachments)
    assert attachments.served == ["one"]
    assert index not in known_interfaces(node)
    assert set(xdp.attached(node.root)) == {netns.index("one")}
    with pytest.raises(DeviceGone):
        xdp.attach(node.root, index, node.pinned.program("xdp"))
    links.cable(netns, "three", netns, "far")
    follow(attachments)
    assert attachments.served == ["one", "three"]


def test_a_changed_hardware_address_is_noticed(node: Node, netns: Namespace) -> None:
    attachments = XdpAttachments(("one",), node.installation)
    follow(attachments)
    netns.netlink.link("set", index=netns.index("one"), address="02:00:00:00:00:77")
    follow(attachments)
    record = node.pinned.layout.maps["uplinks"].value
    ((_, raw),) = node.pinned.map("uplinks").items()
    assert record.unpack(raw)["mac"] == bytes.fromhex("020000000077")


def test_another_programs_xdp_stays_and_is_logged_once(
    node: Node, netns: Namespace, caplog: pytest.LogCaptureFixture
) -> None:
    attachments = XdpAttachments(("one", "two"), node.installation)
    with external(netns, "one") as theirs, caplog.at_level(logging.WARNING):
        for _ in range(3):
            follow(attachments)
            assert attachments.check() == []
        assert programs(netns, "one") == (theirs,)
        assert attachments.served == ["two"]
        reason = f"another XDP program is there (stranger {theirs})"
        assert attachments.declined == {"one": reason}
        assert caplog.messages == [f"one is not served by XDP: {reason}"]
        assert known_interfaces(node) == {netns.index("two")}
    assert attachments.check() == []
    assert attachments.served == ["one", "two"], "the other program has gone"
    assert attachments.declined == {}
    assert known_interfaces(node) == {netns.index("one"), netns.index("two")}


def test_a_driver_without_native_xdp_is_reported(node: Node, netns: Namespace) -> None:
    links.bridge(netns, "plain")
    attachments = XdpAttachments(("plain",), node.installation)
    now = network()
    attachments.follow_network(now, [device for device in now.devices if device.name == "plain"])
    assert attachments.served == []
    assert attachments.declined == {"plain": "its driver has no native XDP"}


def test_a_detached_program_is_noticed_and_attached_again(node: Node, netns: Namespace) -> None:
    attachments = XdpAttachments(("one",), node.installation)
    follow(attachments)
    xdp.detach(node.root, netns.index("one"))
    assert attachments.check() == ["one (XDP)"]
    assert known_interfaces(node) == set()
    assert attachments.check() == []
    follow(attachments)
    assert attachments.served == ["one"]
    assert len(programs(netns, "one")) == 1


UPLINK = {"kind": "", "addresses": (DeviceAddress(pack("192.0.2.1"), 24, 0, True),)}
"""Attributes of a hardware interface with an address, which ``auto`` chooses."""


def test_xdp_stays_attached_while_a_link_goes_down_and_up(node: Node, netns: Namespace) -> None:
    """A network manager may remove the address meanwhile.

    If the agent detached XDP then, some drivers would take the link down again, and so on.
    """
    attachments = XdpAttachments(("auto",), node.installation)
    follow_as(attachments, {"one": UPLINK})
    attached = syscall.get(node.root.links / f"xdp-{netns.index('one')}")
    try:
        follow_as(attachments, {"one": UPLINK | {"addresses": ()}})
        assert syscall.link_ifindex(attached) == netns.index("one")
    finally:
        os.close(attached)
    assert attachments.served == ["one"]
    assert known_interfaces(node) == {netns.index("one")}
    follow_as(attachments, {"one": UPLINK | {"master": netns.index("two")}})
    assert (attachments.served, programs(netns, "one")) == ([], ())
