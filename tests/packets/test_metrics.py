"""What the programs count, as Prometheus reads it."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
from prometheus_client.parser import text_string_to_metric_families as parse

from bpfsvc.agent.sync.metric_maps import open_metric_maps
from bpfsvc.base.service_series import ALL, NONE, ServiceSeries
from bpfsvc.datapath import conntrack
from bpfsvc.metrics.recorder import Metrics
from tests.packets.node import Node
from tests.packets.peers import Peers

Values = dict[str, dict[tuple[str, ...], float]]


def values(metrics: Metrics) -> Values:
    """Return all values by name and label values, in the order of the label names."""
    seen: Values = {}
    for family in parse(b"".join(metrics.scrape()).decode()):
        for sample in family.samples:
            labels = tuple(value for _, value in sorted(sample.labels.items()))
            seen.setdefault(sample.name, {})[labels] = sample.value
    return seen


def opened(node: Node, series: ServiceSeries = ALL) -> Metrics:
    metrics = Metrics(series=series)
    table = SimpleNamespace(entries=7, busiest_ports=3, port_limit=20, open_connections={})
    metrics.opened(lambda: open_metric_maps(node.pinned), node.applied_state, table)
    return metrics


def test_traffic_of_a_service_is_shown(node: Node, tcp_peers: Peers) -> None:
    peers = tcp_peers
    peers.service(node, [peers.backend])
    metrics = opened(node)
    assert "bpfsvc_service_connections_total" not in values(metrics)
    out = node.forward(peers.opening(peers.external, peers.vip))
    back = node.forward(peers.answer(peers.backend, peers.with_port(out.src, out.payload.sport)))
    service = (f"IPv{peers.family}", "web", "default", "80", "TCP")
    samples = values(metrics)
    assert samples["bpfsvc_service_connections_total"] == {service: 1}
    by_direction = {
        "request": (1, 14 + len(out)),
        "reply": (1, 14 + len(back)),
    }
    for direction, (packets, size) in by_direction.items():
        labels = (direction, *service)
        assert samples["bpfsvc_service_packets_total"][labels] == packets
        assert samples["bpfsvc_service_bytes_total"][labels] == size


def test_traffic_of_single_services_can_be_left_out(node: Node, tcp_peers: Peers) -> None:
    tcp_peers.service(node, [tcp_peers.backend])
    metrics = opened(node, NONE)
    node.forward(tcp_peers.opening(tcp_peers.external, tcp_peers.vip))
    assert not [name for name in values(metrics) if name.startswith("bpfsvc_service_")]


def test_rejected_and_dropped_packets_are_counted_by_reason(node: Node, tcp_peers: Peers) -> None:
    """A counter's name and reason come from its field in C."""
    tcp_peers.service(node, [])
    metrics = opened(node)
    node.run("ingress", tcp_peers.opening(tcp_peers.external, tcp_peers.vip))
    samples = values(metrics)
    fields = node.pinned.layout.maps["counters"].value.names
    reasons = {name.partition("__")[2] for name in fields if name.startswith("rejected__")}
    wanted = {(reason,): int(reason == "no_endpoints") for reason in reasons}
    assert samples["bpfsvc_rejected_total"] == wanted
    reasons = {name.partition("__")[2] for name in fields if name.startswith("dropped__")}
    assert samples["bpfsvc_dropped_total"] == {(reason,): 0 for reason in reasons}
    others = {f"bpfsvc_{name}_total" for name in fields if "__" not in name}
    assert others <= samples.keys()


@pytest.mark.parametrize(
    "name", ["services", "frontends", "backends", "node_addresses", "interfaces", "positions"]
)
def test_entries_of_maps_are_shown_with_their_capacity(
    node: Node, tcp_peers: Peers, name: str
) -> None:
    tcp_peers.service(node, [tcp_peers.backend, tcp_peers.other_backend], affinity=60)
    samples = values(opened(node))
    assert samples["bpfsvc_map_entries"][name,] == node.count(name)
    capacity = node.pinned.layout.maps[name].max_entries
    assert samples["bpfsvc_map_capacity"][name,] == capacity


@pytest.mark.parametrize("series", [ALL, NONE], ids=["all", "none"])
def test_counters_in_use_are_counted_with_and_without_series_of_services(
    node: Node, tcp_peers: Peers, series: ServiceSeries
) -> None:
    tcp_peers.service(node, [tcp_peers.backend, tcp_peers.other_backend])
    metrics = opened(node, series)
    assert values(metrics)["bpfsvc_map_entries"]["backend_counters",] == 2
    tcp_peers.service(node, [tcp_peers.backend], name="next", frontends=[tcp_peers.other_vip])
    assert values(metrics)["bpfsvc_map_entries"]["backend_counters",] == 3


def test_connections_are_counted_by_the_connection_gc(node: Node) -> None:
    samples = values(opened(node))
    assert samples["bpfsvc_map_entries"]["connections",] == 7
    assert samples["bpfsvc_busiest_source_ports"][()] == 3
    assert samples["bpfsvc_busiest_source_ports_limit"][()] == 20
    assert samples["bpfsvc_map_entries"]["backend_counters",] == 0


def test_the_table_of_netfilter_is_shown_where_netfilter_follows_connections(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The sysctls are those of the network namespace in which the agent is."""
    use = conntrack.use()
    name = "bpfsvc_nf_conntrack_entries"
    samples = values(opened(node))
    if use is None:
        assert not [sample for sample in samples if sample.startswith(name)]
    else:
        assert samples[f"{name}_limit"] == {(): use.limit}
        assert samples[name].keys() == {()}
    monkeypatch.setattr(conntrack, "use", lambda: conntrack.ConntrackUse(3, 7))
    samples = values(opened(node))
    assert (samples[name], samples[f"{name}_limit"]) == ({(): 3}, {(): 7})
    monkeypatch.setattr(conntrack, "use", lambda: None)
    assert not [sample for sample in values(opened(node)) if sample.startswith(name)]


def test_maps_of_counters_are_not_exposed_with_a_capacity(node: Node) -> None:
    samples = values(opened(node))
    assert samples["bpfsvc_map_entries"].keys() == samples["bpfsvc_map_capacity"].keys()
    assert not {("counters",), ("settings",), ("endpoints",)} & samples["bpfsvc_map_entries"].keys()


def test_the_build_is_shown(node: Node) -> None:
    (labels,) = values(opened(node))["bpfsvc_build_info"]
    assert node.pinned.layout.digest in labels


@pytest.mark.parametrize("entries", [0, 1, 4095, 4096, 4097])
def test_entries_are_counted_without_being_decoded(node: Node, entries: int) -> None:
    table = node.pinned.map("source_ranges" if entries < 2 else "frontends")
    keys = [number.to_bytes(table.key_size, "little") for number in range(32, 32 + entries)]
    table.update_many((key, bytes(table.value_size)) for key in keys)
    assert table.count() == sum(1 for _ in table.items()) == entries
