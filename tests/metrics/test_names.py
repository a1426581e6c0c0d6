"""Names, types, labels and buckets: those of kube-proxy to the letter."""

from __future__ import annotations

import re
import time
from typing import NamedTuple

import pytest
from prometheus_client.parser import text_string_to_metric_families as parse

from bpfsvc.kube.source import Batch, Trigger
from bpfsvc.metrics.observer import Observer
from bpfsvc.metrics.recorder import Metrics
from bpfsvc.metrics.traffic import escaped
from bpfsvc.model import ModelObject, ObjectKey
from tests.services.objects import endpoint_slice, service

TABLE = """
kubeproxy_sync_proxy_rules_duration_seconds histogram ip_family
kubeproxy_sync_full_proxy_rules_duration_seconds histogram ip_family
kubeproxy_sync_partial_proxy_rules_duration_seconds histogram ip_family
kubeproxy_sync_proxy_rules_last_timestamp_seconds gauge ip_family
kubeproxy_sync_proxy_rules_last_queued_timestamp_seconds gauge ip_family
kubeproxy_network_programming_duration_seconds histogram ip_family
kubeproxy_sync_proxy_rules_endpoint_changes_pending gauge
kubeproxy_sync_proxy_rules_endpoint_changes_total counter
kubeproxy_sync_proxy_rules_service_changes_pending gauge
kubeproxy_sync_proxy_rules_service_changes_total counter
kubeproxy_sync_proxy_rules_no_local_endpoints_total gauge ip_family traffic_policy
kubeproxy_proxy_healthz_total counter code
kubeproxy_proxy_livez_total counter code
kubeproxy_conntrack_reconciler_sync_duration_seconds histogram ip_family
kubeproxy_conntrack_reconciler_deleted_entries_total counter ip_family
rest_client_requests_total counter code host method
rest_client_request_duration_seconds histogram host verb
process_start_time_seconds gauge
process_resident_memory_bytes gauge
process_cpu_seconds_total counter
"""
"""Section 12.2 of the catalogue, as far as there is such a thing here, and the standard extras."""

NOW = 1_700_000_000.0


class Contact(NamedTuple):
    resource: str
    connected: bool
    last_data: float
    lists: int = 1
    watches: int = 3
    errors: int = 2
    optional: bool = False


class Clock:
    def __init__(self) -> None:
        self.seconds = NOW

    def __call__(self) -> float:
        return self.seconds


def batch(
    *puts: ModelObject, gone: tuple[ObjectKey, ...] = (), triggers: tuple[Trigger, ...] = ()
) -> Batch:
    return Batch(puts, gone, True, (), triggers=triggers)


def text_of(metrics: Metrics) -> str:
    return b"".join(metrics.scrape()).decode()


def samples(metrics: Metrics, name: str) -> dict[tuple[str, ...], float]:
    """Return the values of one name by the values of its labels, in the order of their names."""
    return {
        tuple(value for _, value in sorted(sample.labels.items())): sample.value
        for family in parse(text_of(metrics))
        for sample in family.samples
        if sample.name == name
    }


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def metrics(clock: Clock) -> Metrics:
    """Metrics with an event of every kind recorded."""
    contacts = [Contact("services", True, time.monotonic() - 9), Contact("nodes", False, 0)]
    made = Metrics(lambda: contacts, now=clock)
    record_everything(made)
    return made


def record_everything(metrics: Observer) -> None:
    changed = batch(service(), endpoint_slice("10.0.0.1 here"), triggers=(Trigger(4, NOW + 1),))
    metrics.queued(changed)
    metrics.applied([changed])
    metrics.synced(0.003, full=True)
    metrics.synced(0.003, full=False)
    metrics.no_local_endpoints({("internal", 4): 1, ("external", 6): 0})
    metrics.stale_udp_removed(0.01, {4: 2})
    metrics.removal_resets(3, 1)
    metrics.quarantines(2, 3)
    metrics.drops_elsewhere_counted()
    metrics.dropped_elsewhere(1, "SKB_DROP_REASON_NETFILTER_DROP", 3)
    metrics.health_response("/healthz", 200)
    metrics.health_response("/livez", 503)
    metrics.api_request("GET", "10.96.0.1:443", "200", 0.02)
    metrics.api_server_version({"major": "1", "minor": "36", "gitVersion": "v1.36.0"})
    metrics.drift_checked(0.1, 3)
    metrics.refused(1)
    metrics.unreadable(2)
    metrics.attachments(5, 10)
    metrics.interfaces_lost(1)
    metrics.fast_path_level("established")
    metrics.pins_lost(1)
    metrics.snapshot_in_use(NOW)


@pytest.mark.parametrize("row", TABLE.strip().splitlines(), ids=lambda row: row.split()[0])
def test_kube_proxys_metrics_have_its_names_and_labels(metrics: Metrics, row: str) -> None:
    name, kind, *labels = row.split()
    text = text_of(metrics)
    assert f"\n# TYPE {name} {kind}\n" in f"\n{text}"
    sample = f"{name}_count" if kind == "histogram" else name
    label_lists = re.findall(rf"^{sample}(?:{{(.*?)}})? \S+$", text, re.MULTILINE)
    assert label_lists
    for label_list in label_lists:
        assert sorted(re.findall(r'(\w+)="', label_list)) == labels


def test_connections_that_were_reset_are_counted_by_their_path(metrics: Metrics) -> None:
    metrics.removal_resets(4, 0)
    name = "bpfsvc_removal_resets_total"
    counts = dict(re.findall(rf'^{name}{{path="(\w+)"}} (\S+)$', text_of(metrics), re.MULTILINE))
    assert counts == {"packets": "7.0", "sockets": "1.0"}


def test_connections_that_were_reset_are_counted_from_zero(clock: Clock) -> None:
    """Or the rate of the first resets would be lost."""
    resets = samples(Metrics(now=clock), "bpfsvc_removal_resets_total")
    assert resets == {("packets",): 0, ("sockets",): 0}


def test_every_name_has_a_known_prefix(metrics: Metrics) -> None:
    prefixes = ("kubeproxy_", "rest_client_", "process_", "bpfsvc_", "kubernetes_build_info")
    names = {family.name for family in parse(text_of(metrics))}
    assert {name for name in names if not name.startswith(prefixes)} == set()
    assert not any(name.endswith("_created") for name in names)


def test_a_name_is_introduced_once(metrics: Metrics) -> None:
    introduced = re.findall(r"^# TYPE (\S+)", text_of(metrics), re.MULTILINE)
    assert len(introduced) == len(set(introduced))


def buckets(metrics: Metrics, name: str, family: str = "IPv4") -> list[str]:
    pattern = rf'^{name}_bucket{{.*ip_family="{family}".*le="(.*?)"}}'
    return re.findall(pattern, text_of(metrics), re.MULTILINE)


def test_buckets_of_syncs_double_from_a_millisecond(metrics: Metrics) -> None:
    """Whole bounds are written as Go does, so that buckets of both proxies add up."""
    bounds = buckets(metrics, "kubeproxy_sync_proxy_rules_duration_seconds")
    assert [float(bound) for bound in bounds] == [0.001 * 2**n for n in range(15)] + [float("inf")]
    assert bounds[:4] == ["0.001", "0.002", "0.004", "0.008"]
    assert bounds[-3:] == ["8.192", "16.384", "+Inf"]


def test_buckets_of_network_programming(metrics: Metrics) -> None:
    bounds = buckets(metrics, "kubeproxy_network_programming_duration_seconds")
    assert bounds == [
        *("0.25", "0.5"),
        *map(str, range(1, 60)),
        *map(str, range(60, 120, 5)),
        *map(str, range(120, 301, 30)),
        "+Inf",
    ]


def test_changes_caused_before_the_start_are_not_measured(clock: Clock) -> None:
    metrics = Metrics(now=clock)
    clock.seconds = NOW + 10
    metrics.applied([batch(triggers=(Trigger(4, NOW - 1), Trigger(4, NOW + 4), Trigger(6, NOW)))])
    name = "kubeproxy_network_programming_duration_seconds"
    assert samples(metrics, f"{name}_count") == {("IPv4",): 1, ("IPv6",): 1}
    assert samples(metrics, f"{name}_sum") == {("IPv4",): 6, ("IPv6",): 10}


def test_changes_are_pending_until_they_are_applied(clock: Clock) -> None:
    """A change of a Service counts for each family, one of a slice once."""
    metrics = Metrics(now=clock)
    first = batch(service(), endpoint_slice("10.0.0.1 here"), endpoint_slice(name="web-2"))
    second = batch(gone=(ObjectKey("Service", "default", "web"),))
    metrics.queued(first)
    metrics.queued(second)
    sync = "kubeproxy_sync_proxy_rules"
    assert samples(metrics, f"{sync}_service_changes_pending") == {(): 4}
    assert samples(metrics, f"{sync}_endpoint_changes_pending") == {(): 2}
    metrics.applied([first])
    assert samples(metrics, f"{sync}_service_changes_pending") == {(): 2}
    assert samples(metrics, f"{sync}_endpoint_changes_pending") == {(): 0}
    assert samples(metrics, f"{sync}_service_changes_total") == {(): 4}
    assert samples(metrics, f"{sync}_endpoint_changes_total") == {(): 2}


class Monotonic(Clock):
    def __init__(self) -> None:
        self.seconds = 50.0


def test_the_time_of_a_change_from_its_arrival_to_the_kernel_is_measured(clock: Clock) -> None:
    """Changes of Services count as well as those of endpoints; a Node is no such change."""
    monotonic = Monotonic()
    metrics = Metrics(now=clock, monotonic=monotonic)
    first, second = batch(service()), batch(endpoint_slice("10.0.0.1 here"))
    metrics.queued(first)
    monotonic.seconds += 2
    metrics.queued(batch())
    metrics.queued(second)
    monotonic.seconds += 1
    metrics.applied([first, batch(), second])
    assert samples(metrics, "bpfsvc_write_delay_seconds_count") == {(): 2}
    assert samples(metrics, "bpfsvc_write_delay_seconds_sum") == {(): 3 + 1}


def test_the_age_of_the_oldest_change_that_waits_is_shown(clock: Clock) -> None:
    monotonic = Monotonic()
    metrics = Metrics(now=clock, monotonic=monotonic)
    name = "bpfsvc_oldest_pending_change_age_seconds"
    assert samples(metrics, name) == {(): 0}
    first, second = batch(service()), batch(service("other"))
    metrics.queued(first)
    monotonic.seconds += 5
    metrics.queued(second)
    monotonic.seconds += 2
    assert samples(metrics, name) == {(): 7}
    metrics.applied([first])
    assert samples(metrics, name) == {(): 2}
    metrics.applied([second])
    assert samples(metrics, name) == {(): 0}


def test_the_delay_of_the_watch_is_measured_when_a_change_arrives(clock: Clock) -> None:
    """Not one that was caused before the agent's start, and never below zero: clocks differ."""
    metrics = Metrics(now=clock)
    clock.seconds = NOW + 10
    metrics.queued(batch(triggers=(Trigger(4, NOW - 1), Trigger(4, NOW + 4), Trigger(6, NOW + 12))))
    assert samples(metrics, "bpfsvc_watch_delay_seconds_count") == {(): 2}
    assert samples(metrics, "bpfsvc_watch_delay_seconds_sum") == {(): 6}


def test_a_sync_that_refused_something_does_not_count_as_the_last(clock: Clock) -> None:
    metrics = Metrics(now=clock)
    metrics.synced(0.1, full=True, families=[4])
    clock.seconds = NOW + 5
    metrics.synced(0.1, full=False, families=[4], complete=False)
    sync = "kubeproxy_sync_proxy_rules"
    assert samples(metrics, f"{sync}_last_timestamp_seconds") == {("IPv4",): NOW}
    assert samples(metrics, f"{sync}_duration_seconds_count") == {("IPv4",): 2}


def test_the_version_of_kubernetes_is_that_of_the_api_server(metrics: Metrics) -> None:
    metrics.api_server_version({"major": "1", "minor": "37", "gitVersion": "v1.37.1"})
    (labels,) = samples(metrics, "kubernetes_build_info")
    assert "v1.37.1" in labels
    assert len(labels) == 9


def test_connections_to_the_api_server_are_shown_by_resource(metrics: Metrics) -> None:
    resources = {("services",), ("nodes",)}
    assert samples(metrics, "bpfsvc_api_connected") == {("services",): 1, ("nodes",): 0}
    assert samples(metrics, "bpfsvc_api_last_contact_timestamp_seconds") == {
        ("services",): pytest.approx(NOW - 9, abs=5),
        ("nodes",): 0,
    }
    for name, count in (("lists", 1), ("watches", 3), ("errors", 2)):
        assert samples(metrics, f"bpfsvc_api_{name}_total") == dict.fromkeys(resources, count)


def test_the_snapshot_is_in_use_or_not(metrics: Metrics) -> None:
    in_use, saved = "bpfsvc_last_good_in_use", "bpfsvc_last_good_saved_timestamp_seconds"
    assert (samples(metrics, in_use), samples(metrics, saved)) == ({(): 1}, {(): NOW})
    metrics.snapshot_in_use(None)
    assert (samples(metrics, in_use), samples(metrics, saved)) == ({(): 0}, {(): 0})


def test_an_observer_records_nothing() -> None:
    """The agent calls it when metrics are off."""
    observer = Observer()
    before = dict(vars(observer))
    record_everything(observer)
    assert vars(observer) == before


def test_the_value_of_a_label_is_read_back_as_it_was() -> None:
    value = 'a"b\\c\nd\\n'
    (family,) = parse(f'x{{y="{escaped(value)}"}} 1\n')
    assert family.samples[0].labels == {"y": value}
