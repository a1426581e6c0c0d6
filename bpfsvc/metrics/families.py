"""The metrics that are recorded, by name. Those read at each scrape are in other modules.

Where the meaning is kube-proxy's, so are the name, the labels and the buckets: dashboards and
alerts go on working. Our own begin with ``bpfsvc_``.
"""

from __future__ import annotations

from prometheus_client import (
    CollectorRegistry,
    Counter,
    Gauge,
    Histogram,
    disable_created_metrics,
)

disable_created_metrics()  # type: ignore[no-untyped-call]

_FAMILY = ("ip_family",)

_SYNC_BUCKETS = tuple(0.001 * 2**power for power in range(15))
_PROGRAMMING_BUCKETS = (
    *(0.25, 0.5),
    *range(1, 60),
    *range(60, 120, 5),
    *range(120, 301, 30),
)
_DELAY_BUCKETS = (0.1, 0.25, 0.5, 1, 2, 4, 8, 15, 30, 60, 120, 300)
_REQUEST_BUCKETS = (0.005, 0.025, 0.1, 0.25, 0.5, 1, 2, 4, 8, 15, 30, 60)

_BUILD = (
    *("major", "minor", "git_version", "git_commit", "git_tree_state"),
    *("build_date", "go_version", "compiler", "platform"),
)


class _Families:
    """Makes families in one registry."""

    def __init__(self, registry: CollectorRegistry, prefix: str = "") -> None:
        self._registry = registry
        self._prefix = prefix

    def gauge(self, name: str, text: str, labels: tuple[str, ...] = ()) -> Gauge:
        return Gauge(self._prefix + name, text, labels, registry=self._registry)

    def counter(self, name: str, text: str, labels: tuple[str, ...] = ()) -> Counter:
        return Counter(self._prefix + name, text, labels, registry=self._registry)

    def histogram(
        self,
        name: str,
        text: str,
        buckets: tuple[float, ...] = _SYNC_BUCKETS,
        labels: tuple[str, ...] = _FAMILY,
    ) -> Histogram:
        name = self._prefix + name
        return Histogram(name, text, labels, buckets=buckets, registry=self._registry)


class SyncFamilies:
    """kube-proxy's metrics of changes, from their arrival until they are in the kernel."""

    def __init__(self, registry: CollectorRegistry) -> None:
        make = _Families(registry, "kubeproxy_")
        sync = "sync_proxy_rules_"
        self.seconds = make.histogram(
            f"{sync}duration_seconds", "Time to write Services to the kernel"
        )
        self.full_seconds = make.histogram(
            "sync_full_proxy_rules_duration_seconds", "Time to write all Services to the kernel"
        )
        self.partial_seconds = make.histogram(
            "sync_partial_proxy_rules_duration_seconds",
            "Time to write the Services that changed to the kernel",
        )
        self.synced_at = make.gauge(
            f"{sync}last_timestamp_seconds", "When Services were last written", _FAMILY
        )
        self.queued_at = make.gauge(
            f"{sync}last_queued_timestamp_seconds", "When a change last arrived", _FAMILY
        )
        self.programming = make.histogram(
            "network_programming_duration_seconds",
            "Time from the cause of a change of endpoints until it is in the kernel",
            _PROGRAMMING_BUCKETS,
        )
        self.endpoint_changes_pending = make.gauge(
            f"{sync}endpoint_changes_pending", "Changes of endpoint slices not yet in the kernel"
        )
        self.endpoint_changes = make.counter(
            f"{sync}endpoint_changes_total", "Changes of endpoint slices that arrived"
        )
        self.service_changes_pending = make.gauge(
            f"{sync}service_changes_pending", "Changes of Services not yet in the kernel"
        )
        self.service_changes = make.counter(
            f"{sync}service_changes_total", "Changes of Services that arrived, for each family"
        )
        self.no_local_endpoints = make.gauge(
            f"{sync}no_local_endpoints_total",
            "Service ports of policy Local whose endpoints are all on other nodes",
            ("traffic_policy", "ip_family"),
        )


class ServingFamilies:
    """kube-proxy's metrics of its health checks, its UDP cleanup and its requests."""

    def __init__(self, registry: CollectorRegistry) -> None:
        make = _Families(registry)
        self.healthz = make.counter(
            "kubeproxy_proxy_healthz_total", "Responses of /healthz", ("code",)
        )
        self.livez = make.counter("kubeproxy_proxy_livez_total", "Responses of /livez", ("code",))
        udp = "kubeproxy_conntrack_reconciler_"
        self.stale_udp_seconds = make.histogram(
            f"{udp}sync_duration_seconds",
            "Time to find UDP entries whose backend no longer serves",
        )
        self.stale_udp_removed = make.counter(
            f"{udp}deleted_entries_total",
            "UDP entries removed because their backend no longer serves",
            _FAMILY,
        )
        self.requests = make.counter(
            "rest_client_requests_total", "Requests to the API server", ("code", "method", "host")
        )
        self.request_seconds = make.histogram(
            "rest_client_request_duration_seconds",
            "Time until the API server answered",
            _REQUEST_BUCKETS,
            ("verb", "host"),
        )
        self.kubernetes = make.gauge(
            "kubernetes_build_info", "1, labelled with the version of the API server", _BUILD
        )


class BpfsvcFamilies:
    """Metrics of the agent that kube-proxy does not have."""

    def __init__(self, registry: CollectorRegistry) -> None:
        make = _Families(registry, "bpfsvc_")
        self.build = make.gauge(
            "build_info", "1, labelled with the version", ("version", "programs")
        )
        self._make_change_families(make)
        self.drift_seconds = make.histogram(
            "reconcile_duration_seconds",
            "Time to compare the kernel with what was written",
            labels=(),
        )
        self.drift_checked_at = make.gauge(
            "reconcile_last_timestamp_seconds", "When the kernel was last compared"
        )
        self.drift = make.counter(
            "drift_rows_total", "Entries in the kernel that were not as written, and were repaired"
        )
        self.refused = make.gauge(
            "services_refused", "Services that are not up to date because a map is full"
        )
        self.removal_resets = make.counter(
            "removal_resets_total",
            "TCP connections reset because their endpoint left a Service that asks for it",
            ("path",),
        )
        self.quarantined = make.gauge("endpoints_quarantined", "Endpoints that are in quarantine")
        self.quarantines = make.counter(
            "endpoint_quarantines_total", "How often an endpoint was put into quarantine"
        )
        self.returned = make.counter(
            "endpoints_returned_total",
            "Endpoints that came back to a Service within ten minutes after they had left it",
        )
        self.unreadable = make.gauge(
            "objects_unreadable",
            "Objects or files that cannot be read; their last state stays in force",
        )
        self._make_node_families(make)
        self.snapshot = make.gauge(
            "last_good_in_use", "1 while the snapshot is used instead of the API server"
        )
        self.snapshot_saved_at = make.gauge(
            "last_good_saved_timestamp_seconds",
            "When the snapshot in use was saved; 0 while none is in use",
        )

    def _make_change_families(self, make: _Families) -> None:
        self.watch_delay = make.histogram(
            "watch_delay_seconds",
            "Time from the cause of a change of endpoints until the agent was told",
            _DELAY_BUCKETS,
            labels=(),
        )
        self.write_delay = make.histogram(
            "write_delay_seconds",
            "Time from the arrival of a change of Services or endpoints until it is in the kernel",
            labels=(),
        )
        self.oldest_pending = make.gauge(
            "oldest_pending_change_age_seconds",
            "For how long the oldest change that is not yet in the kernel has waited; 0 if none",
        )

    def _make_node_families(self, make: _Families) -> None:
        self.interfaces = make.gauge("interfaces_attached", "Interfaces with programs")
        self.socket_programs = make.gauge("socket_programs_attached", "Socket programs attached")
        self.interfaces_lost = make.counter(
            "interfaces_lost_total", "Interfaces found without their programs, and attached again"
        )
        self.fast_path_used = make.gauge(
            "fast_path_used", "1 while packets take the fast path, 0 while all take the stack"
        )
        self.fast_path_level = make.gauge(
            "fast_path_level", "1 for the level at which the fast path is used", ("level",)
        )
        self.pins_lost = make.counter(
            "pins_lost_total", "Pins that another program removed, and that were restored"
        )
