"""The network of a cluster leads nowhere but between its machines."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from bpfsvc.devtools.lab.netns import NetworkNamespace
from tests.cluster import network
from tests.cluster.addresses import API, NODES, OUTSIDE
from tests.cluster.cluster import Cluster
from tests.cluster.errors import ClusterError
from tests.cluster.settings import PREFIX as USUAL
from tests.cluster.settings import Settings

PREFIX = "t-"
RANGES = {"n1": ["10.244.0.0/24", "fd00:10:244::/64"], "n2": ["10.244.1.0/24"], "n3": []}


@pytest.fixture
def built() -> Iterator[None]:
    """The network, built and removed."""
    network.build(PREFIX)
    network.route_pods(PREFIX, RANGES)
    yield
    network.remove(PREFIX)


def routes(machine: str) -> dict[str, str]:
    """Return the gateways of a machine's routes, by where they lead."""
    namespace = NetworkNamespace(machine, prefix=PREFIX)
    seen = {}
    for route in namespace.netlink.route("dump"):
        gateway = route.get("gateway")
        if gateway is not None:
            seen[f"{route.get('dst') or 'everything'}".partition("/")[0]] = str(gateway)
    namespace.release()
    return seen


@pytest.mark.usefixtures("built")
def test_the_default_route_of_nodes_ends_at_a_machine_that_forwards_nothing() -> None:
    for node in NODES:
        gateways = set(network.default_gateways(PREFIX, node.name))
        assert gateways == {str(address) for address in API.addresses}
    api = NetworkNamespace(API.name, prefix=PREFIX)
    assert api.sysctl("net.ipv4.ip_forward") == "0"
    assert api.sysctl("net.ipv6.conf.all.forwarding") == "0"
    api.release()


@pytest.mark.usefixtures("built")
def test_no_other_machine_has_a_default_route() -> None:
    for name in (network.SWITCH, API.name, OUTSIDE.name):
        assert network.default_gateways(PREFIX, name) == []


@pytest.mark.usefixtures("built")
def test_machines_have_one_cable_each() -> None:
    for host in network.HOSTS:
        namespace = NetworkNamespace(host.name, prefix=PREFIX)
        assert namespace.interfaces() == ["lo", "eth0"]
        namespace.release()


@pytest.mark.usefixtures("built")
def test_pods_are_reached_through_their_node() -> None:
    assert routes("n2")["10.244.0.0"] == str(NODES[0].v4)
    assert routes("outside")["fd00:10:244::"] == str(NODES[0].v6)
    assert "10.244.1.0" not in routes("n2")


@pytest.mark.usefixtures("built")
def test_a_network_that_was_built_in_part_is_removed() -> None:
    NetworkNamespace("n2", prefix=PREFIX).close()
    network.remove(PREFIX)
    assert not any(network.exists(PREFIX + name) for name in network.NAMES)


@pytest.mark.usefixtures("built")
def test_a_cluster_that_is_refused_leaves_the_other_one_with_its_names_alone(
    tmp_path: Path,
) -> None:
    cluster = Cluster(Settings(kubernetes=tmp_path, folder=tmp_path, prefix=PREFIX))
    with pytest.raises(ClusterError, match="another cluster has the prefix"):
        cluster.up()
    cluster.down()
    assert all(network.exists(PREFIX + name) for name in network.NAMES)


def test_a_run_of_the_suites_takes_names_that_no_other_cluster_has() -> None:
    assert network.unused_prefix() == USUAL
    left_behind = NetworkNamespace("n2", prefix=USUAL, make=True)
    try:
        assert network.unused_prefix() == "bpfsvc2-"
    finally:
        left_behind.close()
