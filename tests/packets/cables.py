"""The vocabulary of tests of where XDP is attached: two cables, and somebody else's program."""

from __future__ import annotations

import os
import struct
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

from bpfsvc.datapath import bpf, creation, xdp
from bpfsvc.datapath.netlink.conversation import Conversation
from bpfsvc.datapath.netlink.details import read_details
from bpfsvc.datapath.netlink.devices import Network, choose
from bpfsvc.datapath.netlink.network import read_network
from bpfsvc.edge import Edge
from bpfsvc.lab import links
from bpfsvc.lab.namespace import Namespace
from tests.packets.node import Node

_XDP, _XDP_PASS, _DRIVER_MODE = 6, 2, 1 << 2
"""BPF_PROG_TYPE_XDP, its verdict, XDP_FLAGS_DRV_MODE."""


@contextmanager
def laid(node: Node) -> Iterator[Namespace]:
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
    code = struct.pack("=BBhiBBhi", 0xB7, 0, 0, _XDP_PASS, 0x95, 0, 0, 0)
    program = creation.load_program("stranger", _XDP, xdp.ATTACH_TYPE, code, "GPL")
    link = bpf.link_create(program, place.index(name), xdp.ATTACH_TYPE, _DRIVER_MODE)
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


def follow_as(edge: Edge, changes: Mapping[str, Mapping[str, Any]]) -> None:
    """Show a picture in which interfaces are as they are, but for what is said here by name."""
    now = network()
    devices = tuple(replace(each, **changes.get(each.name, {})) for each in now.devices)
    edge.follow(replace(now, devices=devices), choose(devices))


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
