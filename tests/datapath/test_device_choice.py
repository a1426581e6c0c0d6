"""Which interfaces are attached."""

from __future__ import annotations

import pytest

from bpfsvc.base.address import pack
from bpfsvc.datapath.netlink.devices import (
    Device,
    DeviceAddress,
    choice_fault,
    devices_to_attach,
)

ETHER, LOOP, NONE, CAN = 1, 772, 0xFFFE, 280


def device(
    index: int,
    name: str,
    kind: str = "",
    *addresses: str | DeviceAddress,
    master: int = 0,
    hardware: int = ETHER,
) -> Device:
    packed = tuple(
        text if isinstance(text, DeviceAddress) else DeviceAddress(pack(text), 24, 0, True)
        for text in addresses
    )
    return Device(index, name, kind, master, True, hardware, packed)


def names(chosen: tuple[Device, ...]) -> str:
    return " ".join(device.name for device in chosen)


LO = device(1, "lo", "loopback", hardware=LOOP)
ETH0 = device(2, "eth0")

CHOICES = {
    "routed pods: the uplink and every pod's veth": (
        [LO, ETH0, device(3, "cali1", "veth"), device(4, "cali2", "veth")],
        "eth0 cali1 cali2",
    ),
    "netkit is like a veth": (
        [LO, ETH0, device(3, "lxc1", "netkit"), device(4, "lxc2", "netkit")],
        "eth0 lxc1 lxc2",
    ),
    "a bridge is replaced by its ports": (
        [LO, ETH0, device(3, "cni0", "bridge"), device(4, "veth1", "veth", master=3)],
        "eth0 veth1",
    ),
    "an uplink that is a port of a bridge is attached, not the bridge": (
        [LO, device(2, "eth0", master=3), device(3, "br0", "bridge")],
        "eth0",
    ),
    "a bond replaces its slaves": (
        [
            LO,
            device(2, "eth0", master=4),
            device(3, "eth1", master=4),
            device(4, "bond0", "bond"),
        ],
        "bond0",
    ),
    "a bond that is a port of a bridge is attached itself": (
        [
            device(2, "eth0", master=3),
            device(3, "bond0", "bond", master=4),
            device(4, "br0", "bridge"),
        ],
        "bond0",
    ),
    "a team is like a bond": ([device(2, "eth0", master=3), device(3, "team0", "team")], "team0"),
    "a VRF is replaced by its members": (
        [device(2, "eth0", master=3), device(3, "red", "vrf")],
        "eth0",
    ),
    "Open vSwitch: the ports, not its inner interfaces": (
        [
            device(2, "eth0", master=3),
            device(3, "ovs-system", "openvswitch"),
            device(4, "br-ex", "openvswitch"),
        ],
        "eth0",
    ),
    "dummies (nodelocaldns, kube-ipvs0) carry nothing": (
        [ETH0, device(3, "kube-ipvs0", "dummy")],
        "eth0",
    ),
    "tunnels, with an Ethernet header or without": (
        [
            ETH0,
            device(3, "flannel.1", "vxlan"),
            device(4, "wg0", "wireguard", hardware=NONE),
            device(5, "tunl0", "ipip", hardware=768),
        ],
        "eth0 flannel.1 wg0 tunl0",
    ),
    "interfaces without IP are not attached": (
        [ETH0, device(3, "can0", "can", hardware=CAN)],
        "eth0",
    ),
    "mirrors of traffic are not attached": (
        [ETH0, device(3, "ifb0", "ifb"), device(4, "nlmon0", "nlmon", hardware=824)],
        "eth0",
    ),
}


@pytest.mark.parametrize(("devices", "expected"), CHOICES.values(), ids=CHOICES.keys())
def test_default_choice(devices: list[Device], expected: str) -> None:
    """Without --devices, a packet passes our ingress exactly once."""
    assert names(devices_to_attach(devices)) == expected


NODE = [
    LO,
    ETH0,
    device(3, "eth1"),
    device(4, "cni0", "bridge"),
    device(5, "veth1", "veth", master=4),
    device(6, "dummy0", "dummy"),
]

PATTERNS = {
    "a name": (["eth0"], "eth0"),
    "several patterns are alternatives": (["eth0", "veth*"], "eth0 veth1"),
    "a wildcard keeps to the rule": (["*"], "eth0 eth1 veth1"),
    "a plain name overrides the rule": (["cni0", "dummy0"], "cni0 dummy0"),
    "an exclusion alone leaves the rest of the default": (["!eth1"], "eth0 veth1"),
    "an exclusion wins over a name": (["eth*", "eth1", "!eth1"], "eth0"),
    "exclusions have wildcards too": (["!eth*"], "veth1"),
    "a question mark and a class": (["eth[1-9]", "vet??"], "eth1 veth1"),
    "a name that nothing has": (["eth9"], ""),
}


@pytest.mark.parametrize(("patterns", "expected"), PATTERNS.values(), ids=PATTERNS.keys())
def test_patterns(patterns: list[str], expected: str) -> None:
    """--devices narrows the choice by names."""
    assert names(devices_to_attach(NODE, patterns)) == expected


HARDWARE = {"Ethernet": (ETHER, True), "loopback": (LOOP, True), "tun": (NONE, False)}


@pytest.mark.parametrize(("hardware", "expected"), HARDWARE.values(), ids=HARDWARE.keys())
def test_ethernet_header(hardware: int, expected: bool) -> None:
    """Packets of Ethernet interfaces begin with an Ethernet header."""
    assert device(1, "x", hardware=hardware).has_ethernet is expected


@pytest.mark.parametrize(
    ("patterns", "fault"),
    [
        ([], ""),
        (["eth*"], ""),
        (["eht0", "!lo"], "--devices eht0,!lo matches none"),
    ],
    ids=str,
)
def test_names_that_choose_no_interface_are_a_fault(patterns: list[str], fault: str) -> None:
    """A typing error would leave a node without Services; the names that there are help."""
    devices = [ETH0, LO]
    said = choice_fault(devices, patterns, devices_to_attach(devices, patterns))
    assert fault in said
    assert bool(said) == bool(fault)
    assert not said or said.endswith("(eth0, lo)")


@pytest.mark.parametrize(("devices", "there"), [([LO], "(lo)"), ([], "(none)")], ids=["lo", "none"])
def test_a_node_without_a_usable_interface_is_a_fault(devices: list[Device], there: str) -> None:
    """Nobody has chosen wrong, and still no packet meets the programs."""
    said = choice_fault(devices, [], devices_to_attach(devices, []))
    assert said.startswith("no interface has programs attached: no interface of this node carries")
    assert said.endswith(there)
