"""Failed connections of each Service, as counters that only grow."""

from __future__ import annotations

from collections.abc import Sequence

from prometheus_client.metrics_core import CounterMetricFamily, Metric

from bpfsvc.base.service_series import ServiceSeries
from bpfsvc.metrics.backend_sums import BackendSums
from bpfsvc.metrics.kernel_maps import BackendHash
from bpfsvc.metrics.traffic import SERVICE_LABELS
from bpfsvc.services.plans.applied import AppliedState


class ServiceFailures:
    """The sums since the start of the agent: service ports with a failure, and no others."""

    def __init__(
        self,
        failures: BackendHash,
        reasons: Sequence[str],
        applied_state: AppliedState,
        series: ServiceSeries,
    ) -> None:
        """``failures`` is for this object alone; ``reasons``: the names of its fields."""
        self._reasons = reasons
        self._sums = BackendSums(failures, applied_state, series)

    def collect(self) -> Metric:
        """Return the family."""
        family = CounterMetricFamily(
            "bpfsvc_service_failed_connections",
            "Connections to backends of a Service that failed before they were established",
            labels=(*SERVICE_LABELS, "reason"),
        )
        for labels, counts in self._sums.rows():
            for reason, count in zip(self._reasons, counts, strict=True):
                if count:
                    family.add_metric((*labels, reason), count)
        return family
