"""Which address masquerades clients: tests/lab/test_masquerade_choice.py asks the kernel, too.

Here are the cases by name, and those that need a kernel with VRFs.
"""

from __future__ import annotations

import pytest

from bpfsvc.base.address import pack, unpack
from bpfsvc.base.networks import network_text
from bpfsvc.datapath.netlink.devices import Device, DeviceAddress, Interfaces
from bpfsvc.datapath.netlink.masquerade import MasqueradeChoice, Masquerades


def address(text: str, scope: int = 0, **more: object) -> DeviceAddress:
    """Return an address written with its prefix, /24 or /64 by default."""
    own, _, length = text.partition("/")
    default = 64 if ":" in own else 24
    selectable = bool(more.pop("selectable", True))
    return DeviceAddress(pack(own), int(length or default), scope, selectable, **more)  # type: ignore[arg-type]


def device(
    index: int, name: str, kind: str = "", *addresses: str | DeviceAddress, master: int = 0
) -> Device:
    made = tuple(
        given if isinstance(given, DeviceAddress) else address(given) for given in addresses
    )
    return Device(index, name, kind, master, True, 1, made)


UPLINK = device(2, "eth0", "", "192.168.1.10", "fd01::10")
BRIDGE = device(3, "cni0", "bridge", "10.244.1.1", "fd02::1")
PORT = device(4, "veth1", "veth", address("fe80::4", 253), master=3)
POD = device(5, "cali1", "veth", address("169.254.1.1", 253), address("fe80::5", 253))
ANYCAST = device(1, "lo", "loopback", "10.99.0.1/32", "fd99::1/128")
DUMMY = device(6, "dummy0", "dummy", "10.96.0.10")
SECOND = device(7, "eth1", "", "172.16.0.7")

DEFAULTS = {
    "its own": (UPLINK, [UPLINK, BRIDGE], 4, "192.168.1.10"),
    "its own, IPv6": (UPLINK, [UPLINK, BRIDGE], 6, "fd01::10"),
    "a bridge port takes the bridge's": (PORT, [UPLINK, BRIDGE, PORT], 4, "10.244.1.1"),
    "a bridge port takes the bridge's, IPv6": (PORT, [UPLINK, BRIDGE, PORT], 6, "fd02::1"),
    "a pod's veth has only link-local ones: the first interface's": (
        POD,
        [UPLINK, BRIDGE, POD],
        4,
        "192.168.1.10",
    ),
    "an IPv6 link-local address does not count": (POD, [UPLINK, POD], 6, "fd01::10"),
    "a node whose address is on loopback (BGP)": (POD, [ANYCAST, UPLINK, POD], 4, "10.99.0.1"),
    "the same, IPv6": (POD, [ANYCAST, UPLINK, POD], 6, "fd99::1"),
    "its own before loopback's": (UPLINK, [ANYCAST, UPLINK], 4, "192.168.1.10"),
    "a dummy is an interface as others": (POD, [DUMMY, POD, SECOND], 4, "10.96.0.10"),
    "a secondary address is passed over": (
        device(2, "eth0", "", address("192.168.1.9", selectable=False), "192.168.1.10"),
        [],
        4,
        "192.168.1.10",
    ),
    "a deprecated IPv6 address is passed over": (
        device(2, "eth0", "", address("2001:db8::9", deprecated=True), "2001:db8::10"),
        [],
        6,
        "2001:db8::10",
    ),
    "of any interface that is not deprecated": (
        device(2, "eth0", "", address("2001:db8::9", deprecated=True)),
        [BRIDGE],
        6,
        "fd02::1",
    ),
    "but there may be no other": (
        device(2, "eth0", "", address("2001:db8::9", deprecated=True)),
        [],
        6,
        "2001:db8::9",
    ),
    "a tentative one is not in use": (
        device(2, "eth0", "", address("2001:db8::9", tentative=True)),
        [],
        6,
        None,
    ),
    "a temporary one comes after others": (
        device(2, "eth0", "", address("2001:db8::9", temporary=True), "2001:db8::10"),
        [],
        6,
        "2001:db8::10",
    ),
    "none of that family": (SECOND, [SECOND, POD], 6, None),
}


def choices(
    leaving: Device, devices: list[Device], family: int, order: tuple[int, ...] = ()
) -> MasqueradeChoice:
    everything = tuple(devices) if leaving in devices else (leaving, *devices)
    network = Interfaces(everything, 0, 0, order, order)
    return Masquerades(network).choice(leaving, family)


def exceptions(choice: MasqueradeChoice) -> dict[str, str]:
    """Return the exceptions as texts."""
    return {network_text(network): unpack(own) for network, own in choice.exceptions}


@pytest.mark.parametrize(
    ("leaving", "devices", "family", "expected"), DEFAULTS.values(), ids=DEFAULTS.keys()
)
def test_the_default_is_the_address_that_netfilter_takes(
    leaving: Device, devices: list[Device], family: int, expected: str | None
) -> None:
    choice = choices(leaving, devices, family)
    assert choice.default == (pack(expected) if expected else None)


def test_of_several_interfaces_the_one_that_was_registered_first_counts() -> None:
    """Its index may be higher: the uplink of a container comes from another namespace."""
    uplink = device(40, "eth0", "", "192.168.1.10", "fd01::10/64")
    for family, own in ((4, "192.168.1.10"), (6, "fd01::10")):
        choice = choices(POD, [BRIDGE, POD, uplink], family, (40, 3, 5))
        assert choice.default == pack(own)
    assert choices(POD, [BRIDGE, POD, uplink], 4).default == pack("10.244.1.1")


def test_the_next_hop_chooses_among_two_subnets() -> None:
    own = device(2, "eth0", "", "192.168.1.10", "172.16.5.10/16", "10.0.0.7/32")
    choice = choices(own, [], 4)
    assert (choice.default, choice.of) == (pack("192.168.1.10"), 2)
    assert exceptions(choice) == {"172.16.0.0/16": "172.16.5.10", "10.0.0.7/32": "10.0.0.7"}


def test_the_first_subnet_that_holds_the_next_hop_counts_not_the_longest() -> None:
    inner_last = device(2, "eth0", "", "10.0.0.1/8", "10.1.0.1/16", "10.2.0.1/16")
    assert exceptions(choices(inner_last, [], 4)) == {}
    inner_first = device(2, "eth0", "", "192.168.1.10", "10.1.0.1/16", "10.0.0.1/8")
    assert exceptions(choices(inner_first, [], 4)) == {
        "10.0.0.0/8": "10.0.0.1",
        "10.1.0.0/16": "10.1.0.1",
    }


def test_a_peers_address_says_what_the_subnet_is() -> None:
    own = device(2, "ppp0", "", "192.168.1.10", address("10.0.0.1/32", peer=pack("203.0.113.9")))
    assert exceptions(choices(own, [], 4)) == {"203.0.113.9/32": "10.0.0.1"}


def test_the_destination_chooses_among_ipv6_addresses() -> None:
    """By its label: private ones among themselves; then by the longest common prefix."""
    own = device(2, "eth0", "", "2001:db8:1::10", "fd01::10", "2001:db8:2::10")
    choice = choices(own, [], 6)
    assert choice.default == pack("2001:db8:1::10")
    assert choice.address(pack("fd77::1")) == pack("fd01::10")
    assert choice.address(pack("2001:db8:2:7::1")) == pack("2001:db8:2::10")
    assert choice.address(pack("2001:db8:1:7::1")) == pack("2001:db8:1::10")
    assert len(choice.exceptions) < 5


def test_interfaces_without_addresses_share_their_choices() -> None:
    lo = device(1, "lo", "loopback", "fd99::1/128", "2001:db8::1/128")
    other = device(8, "cali2", "veth", address("fe80::8", 253))
    masquerades = Masquerades(Interfaces((lo, POD, other), 0, 0))
    choice = masquerades.choice(POD, 6)
    assert choice is masquerades.choice(other, 6)
    assert choice.exceptions


def test_within_a_vrf_only_its_own_addresses_count() -> None:
    """First its own, which take the place of loopback's; then those of its interfaces."""
    red, blue = device(10, "red", "vrf"), device(11, "blue", "vrf")
    inside = device(12, "pod1", "veth", master=10)
    elsewhere = device(13, "eth1", "", "10.0.0.1", "fd01::1", master=11)
    own = device(14, "eth2", "", "10.0.0.2", "fd01::2", master=10)
    plain = device(15, "eth3", "", "10.0.0.3", "fd01::3")
    devices = [red, blue, inside, elsewhere, own, plain]
    assert choices(inside, devices, 4).default == pack("10.0.0.2")
    assert choices(inside, devices, 6).default == pack("fd01::2")
    devices[0] = device(10, "red", "vrf", "10.9.9.9/32", "fd09::9/128")
    assert choices(inside, devices, 4).default == pack("10.9.9.9")
    assert choices(inside, devices, 6).default == pack("fd09::9")
    devices = [red, blue, inside, elsewhere, plain]
    assert choices(inside, devices, 4).default is None
    assert choices(inside, devices, 6).default is None
