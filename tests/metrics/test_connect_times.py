"""Times to connect become a histogram per service port."""

from __future__ import annotations

import struct
from collections.abc import Iterator

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.metrics_core import Metric

from bpfsvc.base.service_series import ALL, ServiceSeries
from bpfsvc.metrics.connect_times import ServiceConnectTimes
from bpfsvc.services.entries import Backend, ServicePort
from bpfsvc.services.plans.applied import AppliedState, applied

PORT = ServicePort("shop", "web", "http", 6, 4)
OTHER_PORT = ServicePort("shop", "db", "sql", 6, 4)
SHORTEST_US = 64


class Times:
    """A hash of three buckets and a sum, instead of the kernel's."""

    cpu_value_size = value_size = 32

    def __init__(self) -> None:
        self.counts: dict[int, tuple[int, int, int, int]] = {}

    def items(self) -> Iterator[tuple[bytes, bytes]]:
        for key, counts in self.counts.items():
            yield struct.pack("=I", key), struct.pack("=4Q", *counts)

    def lookup(self, key: bytes) -> bytes | None:  # noqa: ARG002
        raise AssertionError("not read one by one")

    def blocks(self) -> Iterator[tuple[int, bytes, bytes]]:
        raise AssertionError("no array")


def serving(*ports: tuple[ServicePort, int]) -> AppliedState:
    """Return the state with service ports of one backend each, by the index of its counters."""
    known = AppliedState()
    for service_id, (port, counters) in enumerate(ports, 1):
        slots = [(Backend(bytes([counters]) * 16, 80), counters)]
        known.update({port: applied(port, 80, service_id, 1, slots, {})})
    return known


def samples(times: ServiceConnectTimes) -> dict[tuple[str, str], float]:
    """Return the values by name of the Service, and end of the bucket, ``count`` or ``sum``."""
    return {
        (sample.labels["name"], sample.labels.get("le", sample.name.rpartition("_")[2])): (
            sample.value
        )
        for sample in times.collect().samples
    }


def test_buckets_add_up_and_end_at_twice_the_time_of_the_one_before() -> None:
    counted = Times()
    times = ServiceConnectTimes(counted, SHORTEST_US, serving((PORT, 7)), ALL)
    counted.counts = {7: (5, 2, 1, 1_000_300)}
    assert samples(times) == {
        ("web", "6.4e-05"): 5,
        ("web", "0.000128"): 7,
        ("web", "+Inf"): 8,
        ("web", "count"): 8,
        ("web", "sum"): 1.0003,
    }


def test_connects_before_the_start_of_the_agent_are_not_counted() -> None:
    counted = Times()
    counted.counts = {7: (5, 2, 1, 1000)}
    times = ServiceConnectTimes(counted, SHORTEST_US, serving((PORT, 7)), ALL)
    assert samples(times) == {}
    counted.counts = {7: (5, 3, 1, 1090)}
    assert samples(times)["web", "count"] == 1


def test_the_service_ports_that_are_shown_are_those_with_the_most_connects_not_the_slowest() -> (
    None
):
    counted = Times()
    known = serving((PORT, 7), (OTHER_PORT, 8))
    times = ServiceConnectTimes(counted, SHORTEST_US, known, ServiceSeries(most=1))
    counted.counts = {7: (5, 0, 0, 200), 8: (0, 0, 1, 30_000_000)}
    shown = samples(times)
    assert shown["web", "count"] == 5
    assert shown["other", "count"] == 1
    assert shown["other", "sum"] == 30


def test_prometheus_reads_it() -> None:
    counted = Times()
    times = ServiceConnectTimes(counted, SHORTEST_US, serving((PORT, 7)), ALL)
    counted.counts = {7: (1, 0, 0, 50)}

    class Collector:
        def collect(self) -> Iterator[Metric]:
            yield times.collect()

    registry = CollectorRegistry()
    registry.register(Collector())
    text = generate_latest(registry).decode()
    family, others = 'ip_family="IPv4"', 'name="web",namespace="shop",port="http",protocol="TCP"'
    name = "bpfsvc_service_connect_seconds"
    assert f'{name}_bucket{{{family},le="6.4e-05",{others}}} 1.0' in text
    assert f"{name}_sum{{{family},{others}}} 5e-05" in text
