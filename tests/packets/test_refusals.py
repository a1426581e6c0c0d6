"""What is refused is counted for each service port, by what happened and why."""

from __future__ import annotations

import pytest

from bpfsvc.base.service_series import NONE
from bpfsvc.inspect.maps.dump import dump
from bpfsvc.inspect.reader import PinnedReader
from bpfsvc.metrics.recorder import Metrics
from bpfsvc.services.entries import Policies, Policy
from bpfsvc.services.plans.diff import plan
from tests.packets.node import Node
from tests.packets.peers import Peers
from tests.packets.test_metrics import opened, values

METRIC = "bpfsvc_service_refused_total"

REJECT, DROP = Policy(0, 0, False, True), Policy(0, 0, False, False)


def counted(metrics: Metrics) -> dict[tuple[str, ...], float]:
    """Return the counts by action, family, Service, port, protocol and reason."""
    seen: dict[tuple[str, ...], float] = {}
    for (action, family, name, _, port, protocol, reason), count in (
        values(metrics).get(METRIC, {}).items()
    ):
        seen[action, family, name, port, protocol, reason] = count
    return seen


def remove(node: Node, name: str) -> None:
    changes = plan(node.applied_state.of(("default", name)), {}, node.ids)
    node.tables.execute(changes)
    node.applied_state.update(changes.applied)


def labels(peers: Peers, action: str, reason: str = "no_endpoints") -> tuple[str, ...]:
    return (action, f"IPv{peers.family}", "web", "80", peers.protocol, reason)


@pytest.mark.parametrize(("policy", "action"), [(REJECT, "rejected"), (DROP, "dropped")])
def test_a_service_without_endpoints_counts_what_it_refuses(
    node: Node, peers: Peers, policy: Policy, action: str
) -> None:
    policies = Policies(policy, policy, policy)
    peers.service(node, [], frontends=[peers.vip], policies=policies)
    metrics = opened(node)
    assert counted(metrics) == {}
    for _ in range(3):
        node.run("ingress", peers.opening(peers.client, peers.vip))
    assert counted(metrics) == {labels(peers, action): 3}


def test_a_client_outside_the_source_ranges_is_counted(node: Node, peers: Peers) -> None:
    network = "10.244.0.0/16" if peers.family == 4 else "fd44::/32"
    peers.service(node, [peers.backend], ranges=[network])
    metrics = opened(node)
    node.run("ingress", peers.opening(peers.external, peers.vip))
    node.run("ingress", peers.opening(peers.client, peers.vip))
    assert counted(metrics) == {labels(peers, "dropped", "source_range"): 1}


def test_a_port_that_a_service_does_not_have_counts_for_the_service(
    node: Node, peers: Peers
) -> None:
    peers.service(node, [peers.backend], frontends=[peers.vip], guarded=True)
    metrics = opened(node)
    node.run("ingress", peers.opening(peers.client, peers.with_port(peers.vip, 81)))
    assert counted(metrics) == {labels(peers, "rejected"): 1}


def test_services_are_counted_apart(node: Node, tcp_peers: Peers) -> None:
    peers = tcp_peers
    peers.service(node, [])
    peers.service(node, [], name="other", frontends=[peers.other_vip])
    metrics = opened(node)
    node.run("ingress", peers.opening(peers.client, peers.other_vip))
    assert {key[2]: count for key, count in counted(metrics).items()} == {"other": 1}


def test_the_count_of_a_removed_service_is_removed(node: Node, tcp_peers: Peers) -> None:
    tcp_peers.service(node, [])
    node.run("ingress", tcp_peers.opening(tcp_peers.client, tcp_peers.vip))
    assert node.count("refusals") == 1
    remove(node, "web")
    assert node.count("refusals") == 0


def test_the_dump_shows_the_counts_by_the_name_of_the_service(node: Node, tcp_peers: Peers) -> None:
    tcp_peers.service(node, [])
    node.run("ingress", tcp_peers.opening(tcp_peers.client, tcp_peers.vip))
    (records,) = dump(PinnedReader(node.pinned), ["refusals"])
    (row,) = (dict(zip(records.columns, row, strict=True)) for row in records.rows)
    assert row["service"] == "default/web:80"
    assert row["rejected__no_endpoints"] == 1


def test_counts_of_single_services_can_be_left_out(node: Node, tcp_peers: Peers) -> None:
    tcp_peers.service(node, [])
    node.run("ingress", tcp_peers.opening(tcp_peers.client, tcp_peers.vip))
    assert METRIC not in values(opened(node, NONE))
