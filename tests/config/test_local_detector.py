"""Which clients are pods of this node, in each of the four modes."""

from __future__ import annotations

import pytest

from bpfsvc.base.address import pack_network
from bpfsvc.config.local_detector import LocalDetector
from bpfsvc.datapath.netlink.devices import Device, arrival_names
from bpfsvc.model import Node

V4, OTHER_V4, V6 = "10.244.1.0/24", "10.250.0.0/16", "fd44:1::/64"
NODE = Node("here", pod_cidrs=tuple(map(pack_network, (V4, OTHER_V4, V6))))
ETH0, CBR0, BRIDGED, ROUTED, CBR1 = 1, 2, 3, 4, 5


def device(index: int, name: str, kind: str = "", master: int = 0) -> Device:
    return Device(index, name, kind, master, up=True, hardware=1, addresses=())


DEVICES = [
    device(ETH0, "eth0"),
    device(CBR0, "cbr0", "bridge"),
    device(BRIDGED, "veth1", "veth", CBR0),
    device(ROUTED, "veth2", "veth"),
    device(CBR1, "cbr01", "bridge"),
]


def test_the_cluster_cidr_identifies_pods_per_family() -> None:
    detector = LocalDetector(cluster_cidrs=("10.244.0.0/16",))
    assert detector.ranges(NODE) == {4: pack_network("10.244.0.0/16")}
    assert detector.families(NODE) == {4}
    assert not detector.by_interface


def test_without_any_range_pods_cannot_be_identified() -> None:
    assert LocalDetector().families(NODE) == set()


def test_the_nodes_own_ranges_identify_pods_once_they_are_known() -> None:
    """Of several of one family the first counts."""
    detector = LocalDetector(mode="NodeCIDR", cluster_cidrs=("10.0.0.0/8",))
    assert detector.ranges(NODE) == {4: pack_network(V4), 6: pack_network(V6)}
    assert detector.families(Node("here")) == set()


INTERFACES = [
    (
        "a bridge and its ports",
        LocalDetector(mode="BridgeInterface", bridge="cbr0"),
        {CBR0, BRIDGED},
    ),
    (
        "an interface that is no bridge",
        LocalDetector(mode="BridgeInterface", bridge="veth2"),
        {ROUTED},
    ),
    (
        "names with a prefix, the ports of a bridge going by its name",
        LocalDetector(mode="InterfaceNamePrefix", prefix="veth"),
        {ROUTED},
    ),
    (
        "bridges with a prefix",
        LocalDetector(mode="InterfaceNamePrefix", prefix="cbr"),
        {CBR0, BRIDGED, CBR1},
    ),
]


@pytest.mark.parametrize(
    ("detector", "expected"), [pytest.param(*case, id=name) for name, *case in INTERFACES]
)
def test_interfaces_identify_pods_of_both_families(
    detector: LocalDetector, expected: set[int]
) -> None:
    assert detector.pod_interfaces(arrival_names(DEVICES)) == expected
    assert (detector.by_interface, detector.ranges(NODE), detector.families(NODE)) == (
        True,
        {},
        {4, 6},
    )


def test_ranges_mark_no_interface() -> None:
    assert (
        LocalDetector(cluster_cidrs=("10.0.0.0/8",)).pod_interfaces(arrival_names(DEVICES)) == set()
    )
