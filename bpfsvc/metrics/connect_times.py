"""How long backends of each Service took to answer the SYNs of this node's clients."""

from __future__ import annotations

from itertools import accumulate

from prometheus_client.metrics_core import HistogramMetricFamily, Metric

from bpfsvc.base.service_series import ServiceSeries
from bpfsvc.metrics.backend_sums import BackendSums
from bpfsvc.metrics.kernel_maps import BackendHash
from bpfsvc.metrics.traffic import SERVICE_LABELS
from bpfsvc.services.plans.applied import AppliedState

_PER_SECOND = 1_000_000
"""Microseconds."""


class ServiceConnectTimes:
    """Histograms since the start of the agent: service ports that pods or the node connected to."""

    def __init__(
        self,
        times: BackendHash,
        shortest_us: int,
        applied_state: AppliedState,
        series: ServiceSeries,
    ) -> None:
        """``times`` is for this object alone; ``shortest_us``: the end of the first bucket."""
        ends = [(shortest_us << n) / _PER_SECOND for n in range(times.cpu_value_size // 8 - 2)]
        self._ends = [*map(repr, ends), "+Inf"]
        """Of the buckets: all fields but the sum, which is the last."""
        self._sums = BackendSums(times, applied_state, series, lambda fields: sum(fields[:-1]))

    def collect(self) -> Metric:
        """Return the family."""
        family = HistogramMetricFamily(
            "bpfsvc_service_connect_seconds",
            "Time from the first SYN of a client on this node to the answer of the backend",
            labels=SERVICE_LABELS,
        )
        for labels, (*counts, sum_us) in self._sums.rows():
            buckets = list(zip(self._ends, accumulate(counts), strict=True))
            family.add_metric(labels, buckets, sum_us / _PER_SECOND)
        return family
