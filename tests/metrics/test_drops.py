"""Packets that other parts of a node drop: counted by Service and the kernel's reason."""

from __future__ import annotations

from bpfsvc.base.service_series import ALL, NONE, ServiceSeries
from bpfsvc.metrics.drops import MOST_REASONS, ServiceDrops
from bpfsvc.services.entries import Backend, ServicePort
from bpfsvc.services.plans.applied import Applied, applied

NETFILTER, FILTER = "SKB_DROP_REASON_NETFILTER_DROP", "SKB_DROP_REASON_IP_RPFILTER"


def port(name: str, service_id: int) -> Applied:
    slots = [(Backend(bytes(16), 80), service_id)]
    return applied(ServicePort("shop", name, "http", 6, 4), 80, service_id, 1, slots, {})


WEB, DB = port("web", 7), port("db", 8)


def counting(series: ServiceSeries = ALL) -> ServiceDrops:
    drops = ServiceDrops(series)
    drops.ports = lambda: [WEB, DB]
    drops.begin()
    return drops


def samples(drops: ServiceDrops) -> dict[tuple[str, str], float]:
    """Return the values by the name of the Service and the reason."""
    (family,) = drops.collect()
    assert all(sample.name == "bpfsvc_service_dropped_elsewhere_total" for sample in family.samples)
    return {
        (sample.labels["name"], sample.labels["reason"]): sample.value for sample in family.samples
    }


def test_packets_are_counted_by_service_and_reason() -> None:
    drops = counting()
    assert samples(drops) == {}
    drops.add(7, NETFILTER, 1)
    drops.add(7, NETFILTER, 4)
    drops.add(7, FILTER, 1)
    drops.add(8, FILTER, 2)
    assert samples(drops) == {("web", NETFILTER): 5, ("web", FILTER): 1, ("db", FILTER): 2}


def test_the_labels_are_those_of_other_metrics_of_services() -> None:
    drops = counting()
    drops.add(7, NETFILTER, 1)
    (family,) = drops.collect()
    assert family.samples[0].labels == {
        **{"namespace": "shop", "name": "web", "port": "http", "protocol": "TCP"},
        **{"ip_family": "IPv4", "reason": NETFILTER},
    }


def test_there_is_no_such_metric_where_drops_are_not_counted() -> None:
    drops = ServiceDrops(ALL)
    assert [*drops.collect()] == []
    off = counting(NONE)
    off.add(7, NETFILTER, 1)
    assert [*off.collect()] == []


def test_services_beyond_the_chosen_series_are_one_sum() -> None:
    drops = counting(ServiceSeries(most=1))
    drops.add(7, NETFILTER, 9)
    drops.add(8, NETFILTER, 3)
    assert samples(drops) == {("web", NETFILTER): 9, ("other", NETFILTER): 3}


def test_a_service_that_is_removed_has_no_counter() -> None:
    drops = counting()
    drops.add(7, NETFILTER, 9)
    assert samples(drops)
    drops.ports = lambda: [DB]
    assert samples(drops) == {}


def test_there_are_never_more_reasons_than_series_may_have() -> None:
    drops = counting()
    for number in range(100):
        drops.add(7, f"SKB_DROP_REASON_{number}", 1)
    counted = samples(drops)
    assert len(counted) == MOST_REASONS
    assert counted["web", "other"] == 100 - (MOST_REASONS - 1)
    assert sum(counted.values()) == 100
