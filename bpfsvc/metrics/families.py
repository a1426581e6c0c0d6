"""The metrics that are kept, by name. What is read when somebody asks stands elsewhere.

Where the meaning is kube-proxy's, so are the name, the labels and the buckets: dashboards and
alerts go on working. Our own begin with ``bpfsvc_``.
"""

from __future__ import annotations

from bpfsvc.bare import bare_package

with bare_package("prometheus_client"):
    # All of it would bring servers, gateways and TLS: 8 MB.
    from prometheus_client.metrics import Counter, Gauge, Histogram, disable_created_metrics
    from prometheus_client.process_collector import ProcessCollector
    from prometheus_client.registry import CollectorRegistry

disable_created_metrics()  # type: ignore[no-untyped-call]

_FAMILY = ("ip_family",)

_SYNC_BUCKETS = tuple(0.001 * 2**power for power in range(15))
_PROGRAMMING_BUCKETS = (
    *(0.25, 0.5),
    *range(1, 60),
    *range(60, 120, 5),
    *range(120, 301, 30),
)
_REQUEST_BUCKETS = (0.005, 0.025, 0.1, 0.25, 0.5, 1, 2, 4, 8, 15, 30, 60)

_BUILD = (
    *("major", "minor", "git_version", "git_commit", "git_tree_state"),
    *("build_date", "go_version", "compiler", "platform"),
)


class KubeProxy:
    """Metrics that kube-proxy has as well."""

    def __init__(self, registry: CollectorRegistry) -> None:
        def histogram(
            name: str, text: str, buckets: tuple[float, ...], labels: tuple[str, ...] = _FAMILY
        ) -> Histogram:
            return Histogram(name, text, labels, buckets=buckets, registry=registry)

        def gauge(name: str, text: str, labels: tuple[str, ...] = ()) -> Gauge:
            return Gauge(name, text, labels, registry=registry)

        def counter(name: str, text: str, labels: tuple[str, ...] = ()) -> Counter:
            return Counter(name, text, labels, registry=registry)

        sync = "kubeproxy_sync_proxy_rules_"
        self.sync = histogram(
            f"{sync}duration_seconds", "Bringing Services into the kernel", _SYNC_BUCKETS
        )
        self.full_sync = histogram(
            "kubeproxy_sync_full_proxy_rules_duration_seconds",
            "Bringing all Services into the kernel",
            _SYNC_BUCKETS,
        )
        self.partial_sync = histogram(
            "kubeproxy_sync_partial_proxy_rules_duration_seconds",
            "Bringing Services that were touched into the kernel",
            _SYNC_BUCKETS,
        )
        self.synced_at = gauge(
            f"{sync}last_timestamp_seconds", "When Services were last brought in", _FAMILY
        )
        self.queued_at = gauge(
            f"{sync}last_queued_timestamp_seconds", "When a change last arrived", _FAMILY
        )
        self.programming = histogram(
            "kubeproxy_network_programming_duration_seconds",
            "From the cause of a change of endpoints to its being in the kernel",
            _PROGRAMMING_BUCKETS,
        )
        self.endpoint_changes_pending = gauge(
            f"{sync}endpoint_changes_pending", "Changes of endpoint slices not yet in the kernel"
        )
        self.endpoint_changes = counter(
            f"{sync}endpoint_changes_total", "Changes of endpoint slices that arrived"
        )
        self.service_changes_pending = gauge(
            f"{sync}service_changes_pending", "Changes of Services not yet in the kernel"
        )
        self.service_changes = counter(
            f"{sync}service_changes_total", "Changes of Services that arrived, for each family"
        )
        self.no_local = gauge(
            f"{sync}no_local_endpoints_total",
            "Service ports of policy Local whose endpoints are all on other nodes",
            ("traffic_policy", "ip_family"),
        )
        self.healthz = counter("kubeproxy_proxy_healthz_total", "Answers of /healthz", ("code",))
        self.livez = counter("kubeproxy_proxy_livez_total", "Answers of /livez", ("code",))
        self.stale_udp = histogram(
            "kubeproxy_conntrack_reconciler_sync_duration_seconds",
            "Looking for UDP entries of backends that ceased to serve",
            _SYNC_BUCKETS,
        )
        self.stale_udp_removed = counter(
            "kubeproxy_conntrack_reconciler_deleted_entries_total",
            "UDP entries removed because their backend ceased to serve",
            _FAMILY,
        )
        self.requests = counter(
            "rest_client_requests_total", "Requests to the API server", ("code", "method", "host")
        )
        self.request_seconds = histogram(
            "rest_client_request_duration_seconds",
            "How long the API server took to answer",
            _REQUEST_BUCKETS,
            ("verb", "host"),
        )
        self.kubernetes = gauge(
            "kubernetes_build_info", "1, labelled with the version of the API server", _BUILD
        )


class Own:
    """Metrics of the agent that kube-proxy has no match for."""

    def __init__(self, registry: CollectorRegistry) -> None:
        def gauge(name: str, text: str, labels: tuple[str, ...] = ()) -> Gauge:
            return Gauge(f"bpfsvc_{name}", text, labels, registry=registry)

        def counter(name: str, text: str) -> Counter:
            return Counter(f"bpfsvc_{name}", text, registry=registry)

        self.build = gauge("build_info", "1, labelled with the version", ("version", "programs"))
        self.reconciled = Histogram(
            "bpfsvc_reconcile_duration_seconds",
            "Comparing the kernel with what was written",
            buckets=_SYNC_BUCKETS,
            registry=registry,
        )
        self.reconciled_at = gauge(
            "reconcile_last_timestamp_seconds", "When the kernel was last compared"
        )
        self.drift = counter(
            "drift_rows_total", "Rows in the kernel that were not as written, and were mended"
        )
        self.refused = gauge(
            "services_refused", "Services that are not up to date because a map is full"
        )
        self.unreadable = gauge(
            "objects_unreadable", "Objects or files that cannot be read; their last state holds"
        )
        self.interfaces = gauge("interfaces_attached", "Interfaces with programs on them")
        self.socket_programs = gauge("socket_programs_attached", "Programs that serve sockets")
        self.lost = counter(
            "interfaces_lost_total", "Interfaces found without their programs, and attached again"
        )
        self.last_good = gauge(
            "last_good_in_use", "1 while the API server is stood in for by the last good state"
        )
        self.last_good_at = gauge(
            "last_good_saved_timestamp_seconds",
            "When the last good state in use was saved; 0 while none is",
        )


__all__ = ["CollectorRegistry", "KubeProxy", "Own", "ProcessCollector"]
