"""Settings that do not fit the address family of the node."""

from __future__ import annotations

import pytest

from bpfsvc.base.address import pack, pack_network
from bpfsvc.base.errors import UsageError
from bpfsvc.config.notes import about_families
from bpfsvc.model import Node
from tests.config.settings import config, of_fields

V4 = Node("node-1", addresses=(pack("192.0.2.1"),))
V6 = Node("node-1", addresses=(pack("2001:db8::1"), pack("192.0.2.1")))


def remarks(fields: str, node: Node, families: tuple[int, ...] = (4, 6)) -> tuple[str, ...]:
    return about_families(config(of_fields(fields)), node, families)


FINE = {
    "the node's own family": ("clusterCIDR: 10.0.0.0/8", V4),
    "both families": ("clusterCIDR: '10.0.0.0/8,fd00::/8'\nnodePortAddresses: [10.0.0.0/8]", V4),
    "a node without an address": ("clusterCIDR: fd00::/8\nbindAddress: ''", Node("node-1")),
    "every address": ("healthzBindAddress: '[::]:1'\nmetricsBindAddress: '[::]:2'", V4),
}


@pytest.mark.parametrize(("fields", "node"), FINE.values(), ids=FINE.keys())
def test_settings_that_fit_the_node_cause_no_remark(fields: str, node: Node) -> None:
    assert remarks(fields, node) == ()


WARNINGS = {
    "pods of the other family": (
        "clusterCIDR: fd00::/8",
        V4,
        "this node is IPv4, and clusterCIDR has IPv6 ranges only",
    ),
    "NodePorts of the other family": (
        "nodePortAddresses: ['fd00::/8']",
        V4,
        "this node is IPv4, and nodePortAddresses has IPv6 ranges only",
    ),
    "health of the other family": (
        "bindAddress: '2001:db8::9'\nmetricsBindAddress: '::1'\nhealthzBindAddress: 127.0.0.1",
        V4,
        "this node is IPv6, and healthzBindAddress is 127.0.0.1",
    ),
    "metrics of the other family": (
        "healthzBindAddress: '::'",
        V6,
        "this node is IPv6, and metricsBindAddress is 127.0.0.1",
    ),
}


@pytest.mark.parametrize(("fields", "node", "warning"), WARNINGS.values(), ids=WARNINGS.keys())
def test_the_other_family_alone_is_a_warning(fields: str, node: Node, warning: str) -> None:
    assert remarks(fields, node) == (warning,)


def test_unidentifiable_pods_are_an_error_where_there_is_one_family() -> None:
    with pytest.raises(UsageError, match="clusterCIDR has IPv6 ranges only"):
        remarks("clusterCIDR: fd00::/8", V4, (4,))
    node = Node("node-1", addresses=V4.addresses, pod_cidrs=(pack_network("fd00::/64"),))
    with pytest.raises(UsageError, match="its podCIDRs are not"):
        remarks("detectLocalMode: NodeCIDR", node)
