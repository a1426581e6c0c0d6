"""Which interfaces are attached, and which address stands for masqueraded clients."""

from __future__ import annotations

import pytest

from bpfsvc.address import pack
from bpfsvc.datapath.netlink.devices import (
    Device,
    DeviceAddress,
    Network,
    choose,
    masquerade_address,
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
        each if isinstance(each, DeviceAddress) else DeviceAddress(pack(each), 24, 0, True)
        for each in addresses
    )
    return Device(index, name, kind, master, True, hardware, packed)


def names(chosen: tuple[Device, ...]) -> str:
    return " ".join(each.name for each in chosen)


LO = device(1, "lo", "loopback", hardware=LOOP)
ETH0 = device(2, "eth0")

CHOICES = {
    "routed pods: the uplink and every pod's veth": (
        [LO, ETH0, device(3, "cali1", "veth"), device(4, "cali2", "veth")],
        "eth0 cali1 cali2",
    ),
    "a bridge gives way to its ports": (
        [LO, ETH0, device(3, "cni0", "bridge"), device(4, "veth1", "veth", master=3)],
        "eth0 veth1",
    ),
    "an uplink that is a port of a bridge is attached, not the bridge": (
        [LO, device(2, "eth0", master=3), device(3, "br0", "bridge")],
        "eth0",
    ),
    "a bond takes the place of its slaves": (
        [
            LO,
            device(2, "eth0", master=4),
            device(3, "eth1", master=4),
            device(4, "bond0", "bond"),
        ],
        "bond0",
    ),
    "a bond that is a port of a bridge is the floor that is attached": (
        [
            device(2, "eth0", master=3),
            device(3, "bond0", "bond", master=4),
            device(4, "br0", "bridge"),
        ],
        "bond0",
    ),
    "a team is like a bond": ([device(2, "eth0", master=3), device(3, "team0", "team")], "team0"),
    "a VRF gives way to its members": (
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
    "what carries no IP is left alone": ([ETH0, device(3, "can0", "can", hardware=CAN)], "eth0"),
    "mirrors of traffic are left alone": (
        [ETH0, device(3, "ifb0", "ifb"), device(4, "nlmon0", "nlmon", hardware=824)],
        "eth0",
    ),
}


@pytest.mark.parametrize(("devices", "expected"), CHOICES.values(), ids=CHOICES.keys())
def test_default_choice(devices: list[Device], expected: str) -> None:
    """Without --devices, a packet meets our ingress once."""
    assert names(choose(devices)) == expected


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
    "a plain name insists": (["cni0", "dummy0"], "cni0 dummy0"),
    "an exclusion alone leaves the rest of the default": (["!eth1"], "eth0 veth1"),
    "an exclusion wins over a name": (["eth*", "eth1", "!eth1"], "eth0"),
    "exclusions have wildcards too": (["!eth*"], "veth1"),
    "a question mark and a class": (["eth[1-9]", "vet??"], "eth1 veth1"),
    "a name that nothing has": (["eth9"], ""),
}


@pytest.mark.parametrize(("patterns", "expected"), PATTERNS.values(), ids=PATTERNS.keys())
def test_patterns(patterns: list[str], expected: str) -> None:
    """--devices narrows the choice by names."""
    assert names(choose(NODE, patterns)) == expected


HARDWARE = {"Ethernet": (ETHER, True), "loopback": (LOOP, True), "tun": (NONE, False)}


@pytest.mark.parametrize(("hardware", "expected"), HARDWARE.values(), ids=HARDWARE.keys())
def test_ethernet_header(hardware: int, expected: bool) -> None:
    """The device tells whether packets begin with an Ethernet header."""
    assert device(1, "x", hardware=hardware).has_ethernet is expected


def unselectable(text: str) -> DeviceAddress:
    return DeviceAddress(pack(text), 24, 0, False)


def link_local(text: str) -> DeviceAddress:
    return DeviceAddress(pack(text), 64, 253, True)


UPLINK = device(2, "eth0", "", "192.168.1.10", "fd01::10")
BRIDGE = device(3, "cni0", "bridge", "10.244.1.1", "fd02::1")
PORT = device(4, "veth1", "veth", link_local("fe80::4"), master=3)
POD = device(5, "cali1", "veth", link_local("169.254.1.1"), link_local("fe80::5"))
ANYCAST = device(1, "lo", "loopback", "10.99.0.1", hardware=LOOP)
DUMMY = device(6, "dummy0", "dummy", "10.96.0.10")
SECOND = device(7, "eth1", "", "172.16.0.7")

MASQUERADES = {
    "its own": (UPLINK, [UPLINK, BRIDGE], 4, "192.168.1.10"),
    "its own, IPv6": (UPLINK, [UPLINK, BRIDGE], 6, "fd01::10"),
    "a bridge port takes the bridge's": (PORT, [UPLINK, BRIDGE, PORT], 4, "10.244.1.1"),
    "a bridge port takes the bridge's, IPv6": (PORT, [UPLINK, BRIDGE, PORT], 6, "fd02::1"),
    "a pod's veth has only link-local ones: the default route's": (
        POD,
        [BRIDGE, UPLINK, POD],
        4,
        "192.168.1.10",
    ),
    "an IPv6 link-local address does not count": (POD, [BRIDGE, UPLINK, POD], 6, "fd01::10"),
    "without a default route, the first in order": (POD, [SECOND, BRIDGE, POD], 4, "10.244.1.1"),
    "dummies and loopback come last": (POD, [ANYCAST, DUMMY, POD, SECOND], 4, "172.16.0.7"),
    "a node whose address is on loopback (BGP)": (POD, [ANYCAST, DUMMY, POD], 4, "10.99.0.1"),
    "a dummy at the very end": (POD, [DUMMY, POD], 4, "10.96.0.10"),
    "a secondary address is passed over": (
        device(2, "eth0", "", unselectable("192.168.1.9"), "192.168.1.10"),
        [],
        4,
        "192.168.1.10",
    ),
    "a deprecated or tentative IPv6 address is passed over": (
        device(2, "eth0", "", unselectable("2001:db8::9"), "2001:db8::10"),
        [],
        6,
        "2001:db8::10",
    ),
    "none of that family": (SECOND, [SECOND, POD], 6, None),
}


@pytest.mark.parametrize(
    ("leaving", "devices", "family", "expected"), MASQUERADES.values(), ids=MASQUERADES.keys()
)
def test_masquerade_address(
    leaving: Device, devices: list[Device], family: int, expected: str | None
) -> None:
    """The address is the one MASQUERADE would take."""
    everything = tuple(devices) if leaving in devices else (leaving, *devices)
    default = 2 if UPLINK in devices else 0
    found = masquerade_address(leaving, Network(everything, default, default), family)
    assert found == (pack(expected) if expected else None)


def test_node_address_breaks_ties() -> None:
    """Without a default route, an address of the Node object comes before others."""
    network = Network((BRIDGE, POD, SECOND), 0, 0)
    assert masquerade_address(POD, network, 4, [pack("172.16.0.7")]) == pack("172.16.0.7")


def test_node_address_does_not_outrank_the_devices_own() -> None:
    """What leaves by eth1 comes from eth1, whatever the Node object says."""
    network = Network((UPLINK, SECOND), 2, 2)
    assert masquerade_address(SECOND, network, 4, [pack("192.168.1.10")]) == pack("172.16.0.7")


def test_node_address_among_several_v6() -> None:
    """IPv6 has no primary address: of several of one interface, the Node object's is taken."""
    own = device(2, "eth0", "", "2001:db8::1", "fd01::10")
    network = Network((own,), 2, 2)
    assert masquerade_address(own, network, 6) == pack("2001:db8::1")
    assert masquerade_address(own, network, 6, [pack("fd01::10")]) == pack("fd01::10")


def test_vrf_keeps_to_itself() -> None:
    """An interface of a VRF without an address takes one of that VRF, or none."""
    red, blue = device(10, "red", "vrf"), device(11, "blue", "vrf")
    inside = device(12, "pod1", "veth", master=10)
    elsewhere = device(13, "eth1", "", "10.0.0.1", master=11)
    own = device(14, "eth2", "", "10.0.0.2", master=10)
    plain = device(15, "eth3", "", "10.0.0.3")
    network = Network((red, blue, inside, elsewhere, own, plain), 15, 0)
    assert masquerade_address(inside, network, 4) == pack("10.0.0.2")
    without = Network((red, blue, inside, elsewhere, plain), 15, 0)
    assert masquerade_address(inside, without, 4) is None
