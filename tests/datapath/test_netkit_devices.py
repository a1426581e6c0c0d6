"""netkit, the newer alternative to veth: the kernel's messages about it, without such a kernel."""

from __future__ import annotations

import struct
from typing import Any

import pytest

from bpfsvc.datapath.netlink.devices import Interfaces, allows_fast_path, devices_to_attach, uplinks
from bpfsvc.datapath.netlink.network import NetworkReader
from bpfsvc.datapath.netlink.rtnetlink import Rtnetlink, ifinfmsg, nlmsg, rtnl

NLMSG_DONE = 3
PASS, DROP = 0, 2
L2, L3 = 0, 1
PRIMARY, POLICY, MODE, SCRUB = 2, 3, 5, 6
"""Attributes of netkit (IFLA_NETKIT_*)."""
MACS = {L2: bytes.fromhex("0a58c0a80a01"), L3: bytes(6)}
"""Also in L3 mode the interface has a hardware address and frames have a header, all zero."""


def attribute(kind: int, value: bytes) -> bytes:
    return struct.pack("=HH", 4 + len(value), kind) + value + bytes(-len(value) % 4)


def number(kind: int, value: int) -> bytes:
    return attribute(kind, struct.pack("=I", value))


def link(mode: int = L2, policy: int = PASS) -> bytes:
    """Return what the kernel writes about the primary device of a pod in another namespace."""
    own = attribute(PRIMARY, b"\1") + number(POLICY, policy) + number(MODE, mode)
    info = attribute(1, b"netkit\0") + attribute(2, own + number(SCRUB, 1))
    attributes = attribute(3, b"lxc1\0") + attribute(6, b"noqueue\0")
    attributes += attribute(1, MACS[mode]) + number(37, 0) + attribute(18, info)
    return struct.pack("=BxHiII", 0, 1, 7, 0x1, 0) + attributes


class Socket:
    """Lists one interface, without addresses, and knows no route."""

    def __init__(self, body: bytes) -> None:
        self._body = body
        self._answers: list[Any] = []

    def put(self, _message: object, kind: int, _flags: int, *, msg_seq: int) -> None:
        links = [self._body] if kind == rtnl.RTM_GETLINK else []
        self._answers = [answer(rtnl.RTM_NEWLINK, msg_seq, body) for body in links]
        self._answers.append(answer(NLMSG_DONE, msg_seq, bytes(4)))

    def get(self) -> list[Any]:
        return self._answers


def answer(kind: int, sequence: int, body: bytes) -> Any:
    header = struct.pack("=IHHII", 16 + len(body), kind, 2, sequence, 0)
    message = (ifinfmsg if kind == rtnl.RTM_NEWLINK else nlmsg)(header + body)
    message.decode()
    message["header"]["error"] = None
    return message


def read(body: bytes) -> Interfaces:
    return NetworkReader(Rtnetlink(Socket(body))).read()


@pytest.mark.parametrize("mode", [L2, L3], ids=["L2", "L3"])
def test_programs_for_ethernet_are_attached_in_both_modes(mode: int) -> None:
    network = read(link(mode))
    (device,) = devices_to_attach(network.devices)
    assert (device.name, device.kind, device.has_ethernet) == ("lxc1", "netkit", True)
    assert device.mac == MACS[mode]
    assert not uplinks(network)


@pytest.mark.parametrize("mode", [L2, L3], ids=["L2", "L3"])
def test_the_fast_path_goes_into_a_pod_unless_the_kernel_drops_all_packets_to_it(mode: int) -> None:
    """Without programs the policy decides: ``blackhole`` keeps packets from the pod."""
    for policy, allowed in ((PASS, True), (DROP, False)):
        network = read(link(mode, policy))
        assert allows_fast_path(network.devices[0], network) is allowed
