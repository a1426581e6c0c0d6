"""Which interfaces XDP serves, and the reasons for the others."""

from __future__ import annotations

import pytest

from bpfsvc.agent.node import xdp_devices
from bpfsvc.base.address import pack
from bpfsvc.datapath.netlink.devices import Device, DeviceAddress, Interfaces
from bpfsvc.datapath.netlink.devices import devices_to_attach as attached

MAC = bytes.fromhex("020000000001")
ADDRESS = "192.0.2.1"


def device(index: int, name: str, kind: str = "", address: str = "", *, master: int = 0) -> Device:
    addresses = (DeviceAddress(pack(address), 24, 0, True),) if address else ()
    return Device(index, name, kind, master, True, 1, addresses, MAC)


TUNNEL = Device(9, "wg0", "wireguard", 0, True, 0xFFFE, ())
NODE = Interfaces(
    (
        device(1, "lo", "loopback"),
        device(2, "eth0", address=ADDRESS),
        device(3, "eth1"),
        device(4, "eth2", address="198.51.100.1"),
        device(5, "cali1", "veth"),
        device(6, "flannel.1", "vxlan", "10.244.0.0"),
        device(7, "cni0", "bridge", "10.244.0.1"),
        device(8, "veth1", "veth", master=7),
        TUNNEL,
    ),
    default_v4=2,
    default_v6=0,
)
BOND = Interfaces(
    (
        device(2, "eth0", master=4),
        device(3, "eth1", master=4),
        device(4, "bond0", "bond", ADDRESS),
    ),
    default_v4=4,
    default_v6=4,
)


def chosen(network: Interfaces, *patterns: str) -> str:
    devices = xdp_devices.choose(network, attached(network.devices), patterns)
    return " ".join(device.name for device in devices)


@pytest.mark.parametrize(
    ("patterns", "names"),
    [
        pytest.param("", "", id="nothing is served unless it is asked for"),
        pytest.param("auto", "eth0 eth2", id="hardware with an address or a default route"),
        pytest.param("auto !eth2", "eth0", id="but what is excluded"),
        pytest.param("!eth0", "eth2", id="exclusions alone leave the rest to the rule"),
        pytest.param("eth*", "eth0 eth2", id="a pattern narrows what the rule chooses"),
        pytest.param("*", "eth0 eth2", id="and adds nothing to it"),
        pytest.param("eth1", "eth1", id="a name insists"),
        pytest.param("cali1", "cali1", id="also on a cable"),
        pytest.param("wg0", "", id="but not where there is no Ethernet header"),
        pytest.param("cni0", "", id="nor where the programs at the tc hooks are not"),
    ],
)
def test_interfaces_are_chosen(patterns: str, names: str) -> None:
    assert chosen(NODE, *patterns.split()) == names


def test_a_bond_is_served_through_the_drivers_of_its_ports() -> None:
    assert chosen(BOND, "auto") == "bond0"
    bond = BOND.devices[2]
    assert xdp_devices.by_driver(BOND, (bond,)) == {4: bond, 2: bond, 3: bond}
    assert xdp_devices.by_driver(NODE, NODE.devices[1:2]) == {2: NODE.devices[1]}


REASONS = {
    "a port of a bridge": (
        Interfaces(
            (device(2, "eth0", master=3), device(3, "br0", "bridge", ADDRESS)),
            default_v4=3,
            default_v6=3,
        ),
        {"eth0": "it is part of br0"},
    ),
    "a VLAN": (
        Interfaces((device(2, "eth0"), device(3, "eth0.7", "vlan", ADDRESS)), 3, 0),
        {"eth0.7": "no driver runs XDP for a vlan"},
    ),
    "a cable": (
        Interfaces((device(2, "eth0", "veth", ADDRESS),), 2, 2),
        {"eth0": "no driver runs XDP for a veth"},
    ),
    "a tunnel": (
        Interfaces((TUNNEL,), 9, 0),
        {"wg0": "no driver runs XDP for a wireguard"},
    ),
}


@pytest.mark.parametrize(("network", "reasons"), REASONS.values(), ids=REASONS.keys())
def test_an_uplink_that_auto_does_not_choose_is_reported(
    network: Interfaces, reasons: dict[str, str]
) -> None:
    on = attached(network.devices)
    assert xdp_devices.choose(network, on, ("auto",)) == ()
    assert xdp_devices.unsuitable(network, on, ("auto",)) == reasons
    assert xdp_devices.unsuitable(network, on, ()) == {}


def test_served_interfaces_and_those_that_are_no_uplinks_are_not_reported() -> None:
    assert xdp_devices.unsuitable(NODE, attached(NODE.devices), ("auto",)) == {}


def test_only_a_veth_takes_nothing_but_redirected_packets() -> None:
    assert xdp_devices.takes_redirected_only(device(2, "eth0", "veth"))
    assert not xdp_devices.takes_redirected_only(device(2, "eth0"))


@pytest.mark.parametrize(
    ("kind", "driver", "takes"),
    [("veth", "", True), ("", "ice", True), ("", "mlx4_en", False), ("", "", False)],
)
def test_packets_are_redirected_only_to_drivers_that_are_known_to_send_them(
    kind: str, driver: str, takes: bool
) -> None:
    assert xdp_devices.takes_redirected(device(2, "eth0", kind), driver) is takes
