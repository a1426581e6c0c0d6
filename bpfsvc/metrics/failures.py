"""Failed connections of each Service, as counters that only grow.

The kernel counts for each backend, and forgets a backend that is removed. So what is counted
between two scrapes is added here to the sums of service ports. What fails between the last scrape
and the removal of its backend is not in the sums.
"""

from __future__ import annotations

import struct
import threading
from collections.abc import Sequence
from functools import partial

from prometheus_client.metrics_core import CounterMetricFamily, Metric

from bpfsvc.base.service_series import ServiceSeries
from bpfsvc.metrics.choice import OTHER, Choice, Counted
from bpfsvc.metrics.kernel_maps import PerCpuHash
from bpfsvc.metrics.pace import Pace
from bpfsvc.metrics.sums import Sums
from bpfsvc.metrics.traffic import SERVICE_LABELS, service_labels
from bpfsvc.services.plans.applied import Applied, AppliedState

_ID = struct.Struct("=I")


class ServiceFailures:
    """The sums since the start of the agent: service ports with a failure, and no others.

    Counts of several reasons are one number, with the fields side by side (:mod:`.sums`).
    """

    def __init__(
        self,
        failures: PerCpuHash,
        reasons: Sequence[str],
        applied_state: AppliedState,
        series: ServiceSeries,
    ) -> None:
        """``failures`` is for this object alone; ``reasons``: the names of its fields."""
        self._failures = failures
        self._reasons = reasons
        self._sums = Sums(failures)
        self._choice = Choice(series, self._sums)
        self._applied_state = applied_state
        self._lock = threading.Lock()
        self._known = self._read()
        self._totals: dict[int, int] = {}
        """By service id."""

    def collect(self) -> Metric:
        """Return the family."""
        family = CounterMetricFamily(
            "bpfsvc_service_failed_connections",
            "Connections to backends of a Service that failed before they were established",
            labels=(*SERVICE_LABELS, "reason"),
        )
        with self._lock:
            shown, others = self._choice.split(self._counted())
        fields = self._sums.fields
        rows = [(service_labels(applied), fields(counts)) for applied, counts in shown]
        for labels, counts in [*rows, *([(OTHER, others)] if others else [])]:
            for reason, count in zip(self._reasons, counts, strict=True):
                if count:
                    family.add_metric((*labels, reason), count)
        return family

    def _counted(self) -> list[Counted]:
        """Return the service ports with failures; what was counted since the last call is added."""
        ports = self._applied_state.snapshot()
        new = self._new()
        totals = self._totals
        for port in Pace().over(ports) if new else ():
            for index in port.counter_ids & new.keys():
                totals[port.service_id] = totals.get(port.service_id, 0) + new[index]
        present: dict[int, Applied] = {port.service_id: port for port in ports} if totals else {}
        for service_id in totals.keys() - present.keys():
            gone = totals.pop(service_id)
            self._choice.removed(service_id, partial(int, gone))
        return [(present[service_id], counts) for service_id, counts in totals.items()]

    def _new(self) -> dict[int, int]:
        """Return what each backend has counted since the last call."""
        before, self._known = self._known, self._read()
        new = {}
        for index, counts in self._known.items():
            # Smaller counts than before are those of another backend.
            since = counts - before.get(index, 0)
            new[index] = since if self._sums.is_not_negative(since) else counts
        return {index: since for index, since in new.items() if since}

    def _read(self) -> dict[int, int]:
        fold = self._sums.fold
        return {_ID.unpack(key)[0]: fold(raw) for key, raw in self._failures.items()}
