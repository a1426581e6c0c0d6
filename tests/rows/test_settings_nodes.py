"""Settings against the node they are meant for."""

from __future__ import annotations

from pathlib import Path

import pytest

from bpfsvc.address import pack, pack_network
from bpfsvc.errors import UsageError
from bpfsvc.model import Node
from bpfsvc.settings.families import doubts
from bpfsvc.settings.oom import protect
from tests.rows.settings import config, of_fields

V4 = Node("node-1", addresses=(pack("192.0.2.1"),))
V6 = Node("node-1", addresses=(pack("2001:db8::1"), pack("192.0.2.1")))


def asked(fields: str, node: Node, families: tuple[int, ...] = (4, 6)) -> tuple[str, ...]:
    return doubts(config(of_fields(fields)), node, families)


FINE = {
    "the node's own family": ("clusterCIDR: 10.0.0.0/8", V4),
    "both families": ("clusterCIDR: '10.0.0.0/8,fd00::/8'\nnodePortAddresses: [10.0.0.0/8]", V4),
    "a node nobody knows": ("clusterCIDR: fd00::/8\nbindAddress: ''", Node("node-1")),
    "every address": ("healthzBindAddress: '[::]:1'\nmetricsBindAddress: '[::]:2'", V4),
}


@pytest.mark.parametrize(("fields", "node"), FINE.values(), ids=FINE.keys())
def test_what_fits_the_node_is_not_doubted(fields: str, node: Node) -> None:
    assert asked(fields, node) == ()


DOUBTS = {
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


@pytest.mark.parametrize(("fields", "node", "doubt"), DOUBTS.values(), ids=DOUBTS.keys())
def test_the_other_family_alone_is_doubted(fields: str, node: Node, doubt: str) -> None:
    assert asked(fields, node) == (doubt,)


def test_pods_nobody_could_tell_are_fatal_where_there_is_one_family() -> None:
    with pytest.raises(UsageError, match="clusterCIDR has IPv6 ranges only"):
        asked("clusterCIDR: fd00::/8", V4, (4,))
    node = Node("node-1", addresses=V4.addresses, pod_cidrs=(pack_network("fd00::/64"),))
    with pytest.raises(UsageError, match="its podCIDRs are not"):
        asked("detectLocalMode: NodeCIDR", node)


def test_the_score_is_set_when_it_differs(tmp_path: Path) -> None:
    path = tmp_path / "oom_score_adj"
    path.write_text("0\n")
    assert protect(-999, path) == ""
    assert path.read_text() == "-999\n"
    path.chmod(0o444)
    assert protect(-999, path) == ""
    assert protect(None, tmp_path / "nothing") == ""


def test_a_score_that_cannot_be_set_is_told(tmp_path: Path) -> None:
    assert protect(-999, tmp_path / "nothing") == (
        "oomScoreAdj stays as it was: No such file or directory"
    )
