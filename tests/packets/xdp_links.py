"""A node with two interfaces for the tests of attaching XDP, and another program's XDP."""

from __future__ import annotations

import os
import struct
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

from bpfsvc.agent.node.xdp import XdpAttachments
from bpfsvc.datapath import syscall
from bpfsvc.datapath.attach import xdp
from bpfsvc.datapath.loader import creation
from bpfsvc.datapath.netlink.details import read_details
from bpfsvc.datapath.netlink.devices import Interfaces, devices_to_attach
from bpfsvc.datapath.netlink.network import read_network
from bpfsvc.devtools.lab import links
from bpfsvc.devtools.lab.namespace import Namespace
from tests.packets.node import Node

_XDP, _XDP_PASS, _DRIVER_MODE = 6, 2, 1 << 2
"""BPF_PROG_TYPE_XDP, its verdict, XDP_FLAGS_DRV_MODE."""


@contextmanager
def two_links(node: Node) -> Iterator[Namespace]:
    """Enter the namespace of a node with the interfaces ``one`` and ``two``."""
    here, there = Namespace("xdp-here"), Namespace("xdp-there")
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
def external(netns: Namespace, name: str) -> Iterator[int]:
    """Attach an XDP program that is not of bpfsvc to an interface; yield its id."""
    code = struct.pack("=BBhiBBhi", 0xB7, 0, 0, _XDP_PASS, 0x95, 0, 0, 0)
    program = creation.load_program("stranger", _XDP, xdp.ATTACH_TYPE, code, "GPL")
    link = syscall.link_create(program, netns.index(name), xdp.ATTACH_TYPE, _DRIVER_MODE)
    try:
        yield syscall.program_id(program)
    finally:
        os.close(program)
        os.close(link)


def network() -> Interfaces:
    return read_network()


def follow(attachments: XdpAttachments) -> None:
    now = network()
    attachments.follow_network(now, devices_to_attach(now.devices))


def follow_as(attachments: XdpAttachments, changes: Mapping[str, Mapping[str, Any]]) -> None:
    """Pass on the interfaces of the kernel, with the attributes in ``changes``, by name."""
    now = network()
    devices = tuple(replace(device, **changes.get(device.name, {})) for device in now.devices)
    attachments.follow_network(replace(now, devices=devices), devices_to_attach(devices))


def programs(netns: Namespace, name: str) -> tuple[int, ...]:
    """Return the ids of the XDP programs on an interface, as the kernel reports them."""
    return read_details()[netns.index(name)].xdp


def known_interfaces(node: Node) -> set[int]:
    """Return the interfaces that the program knows."""
    return {struct.unpack("=I", key)[0] for key, _ in node.pinned.map("uplinks").items()}
