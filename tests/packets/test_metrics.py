"""What the programs count, as Prometheus is told."""

from __future__ import annotations

import pytest
from prometheus_client.parser import text_string_to_metric_families as parse

from bpfsvc.metrics.recorder import Metrics
from tests.packets.node import Node
from tests.packets.scene import Scene

Told = dict[str, dict[tuple[str, ...], float]]


def told(metrics: Metrics) -> Told:
    """Give all values by name, and by those of the labels in the order of their names."""
    found: Told = {}
    for family in parse(b"".join(metrics.scrape()).decode()):
        for one in family.samples:
            labels = tuple(value for _, value in sorted(one.labels.items()))
            found.setdefault(one.name, {})[labels] = one.value
    return found


def opened(node: Node, *, services: bool = True) -> Metrics:
    metrics = Metrics(services=services)
    metrics.opened(node.pinned, node.ledger, lambda: 7)
    return metrics


def test_traffic_of_a_service_is_told(node: Node, tcp_scene: Scene) -> None:
    scene = tcp_scene
    scene.service(node, [scene.backend])
    metrics = opened(node)
    assert "bpfsvc_service_connections_total" not in told(metrics)
    out = node.forward(scene.opening(scene.stranger, scene.vip))
    back = node.forward(scene.answer(scene.backend, scene.at(out.src, out.payload.sport)))
    service = (f"IPv{scene.family}", "web", "default", "80", "TCP")
    found = told(metrics)
    assert found["bpfsvc_service_connections_total"] == {service: 1}
    by_direction = {
        "request": (1, 14 + len(out)),
        "reply": (1, 14 + len(back)),
    }
    for direction, (packets, size) in by_direction.items():
        labels = (direction, *service)
        assert found["bpfsvc_service_packets_total"][labels] == packets
        assert found["bpfsvc_service_bytes_total"][labels] == size


def test_traffic_of_single_services_can_be_left_out(node: Node, tcp_scene: Scene) -> None:
    tcp_scene.service(node, [tcp_scene.backend])
    metrics = opened(node, services=False)
    node.forward(tcp_scene.opening(tcp_scene.stranger, tcp_scene.vip))
    assert not [name for name in told(metrics) if name.startswith("bpfsvc_service_")]


def test_what_is_refused_and_dropped_is_told_by_reason(node: Node, tcp_scene: Scene) -> None:
    """A counter's name and reason are those of its field in C."""
    tcp_scene.service(node, [])
    metrics = opened(node)
    node.run("ingress", tcp_scene.opening(tcp_scene.stranger, tcp_scene.vip))
    found = told(metrics)
    assert found["bpfsvc_rejected_total"] == {("no_endpoints",): 1}
    fields = node.pinned.layout.maps["counters"].value.names
    reasons = {name.partition("__")[2] for name in fields if name.startswith("dropped__")}
    assert found["bpfsvc_dropped_total"] == {(reason,): 0 for reason in reasons}
    others = {f"bpfsvc_{name}_total" for name in fields if "__" not in name}
    assert others <= found.keys()


@pytest.mark.parametrize(
    "name", ["services", "frontends", "backends", "node_addresses", "interfaces", "positions"]
)
def test_rows_of_maps_are_told_and_how_many_there_may_be(
    node: Node, tcp_scene: Scene, name: str
) -> None:
    tcp_scene.service(node, [tcp_scene.backend, tcp_scene.other_backend], affinity=60)
    found = told(opened(node))
    assert found["bpfsvc_map_entries"][name,] == node.count(name)
    capacity = node.pinned.layout.maps[name].max_entries
    assert found["bpfsvc_map_capacity"][name,] == capacity


def test_connections_are_counted_by_who_sweeps_them(node: Node) -> None:
    found = told(opened(node))
    assert found["bpfsvc_map_entries"]["connections",] == 7
    assert found["bpfsvc_map_entries"]["backend_counters",] == 0


def test_maps_that_only_hold_numbers_never_fill_up(node: Node) -> None:
    found = told(opened(node))
    assert found["bpfsvc_map_entries"].keys() == found["bpfsvc_map_capacity"].keys()
    assert not {("counters",), ("settings",), ("endpoints",)} & found["bpfsvc_map_entries"].keys()


def test_the_build_is_told(node: Node) -> None:
    (labels,) = told(opened(node))["bpfsvc_build_info"]
    assert node.pinned.layout.digest in labels


@pytest.mark.parametrize("rows", [0, 1, 4095, 4096, 4097])
def test_rows_are_counted_without_being_looked_at(node: Node, rows: int) -> None:
    found = node.pinned.map("source_ranges" if rows < 2 else "endpoints")
    keys = [number.to_bytes(found.key_size, "little") for number in range(32, 32 + rows)]
    found.update_many((key, bytes(found.value_size)) for key in keys)
    assert found.count() == sum(1 for _ in found.items()) == rows
