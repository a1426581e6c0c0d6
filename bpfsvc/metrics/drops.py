"""Packets of each Service that other parts of the node have dropped, by the kernel's reason.

Nobody counts them but the agent, from the events that it asks for while
``--count-drops-elsewhere`` is on. The kernel has some ninety reasons, and newer ones more, so the
reasons of series are bounded.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence

from prometheus_client.metrics_core import CounterMetricFamily, Metric

from bpfsvc.base.service_series import ServiceSeries
from bpfsvc.metrics.choice import Choice
from bpfsvc.metrics.sums import Folding
from bpfsvc.metrics.traffic import SERVICE_LABELS, labelled
from bpfsvc.services.plans.applied import Applied

MOST_REASONS = 32
"""The last one stands for all others."""

OTHER_REASON = "other"

_BYTES = 8 * MOST_REASONS


class ServiceDrops:
    """The sums since the start of the agent: service ports with a drop, and no others.

    Counts of several reasons are one number, with the fields side by side (:mod:`.sums`).
    """

    def __init__(self, series: ServiceSeries) -> None:
        """``series``: the service ports that are shown one by one."""
        self.ports: Callable[[], Sequence[Applied]] = list
        """Returns the service ports in the kernel."""
        self._is_on = False
        self._is_shown = not series.shows_none
        self._sums = Folding(_BYTES, _BYTES)
        self._choice = Choice(series, self._sums)
        self._reasons: dict[str, int] = {}
        """By name: a number with 1 in the field of the reason."""
        self._totals: dict[int, int] = {}
        """By service id."""
        self._lock = threading.Lock()

    def begin(self) -> None:
        """Have the metric: from now on, drops are counted."""
        self._is_on = True

    def add(self, service_id: int, reason: str, packets: int) -> None:
        """Count packets of a service port."""
        with self._lock:
            counts = self._unit(reason) * packets
            self._totals[service_id] = self._totals.get(service_id, 0) + counts

    def collect(self) -> Iterator[Metric]:
        """Yield the family, as a collector does; nothing if drops are not counted."""
        if not (self._is_on and self._is_shown):
            return
        family = CounterMetricFamily(
            "bpfsvc_service_dropped_elsewhere",
            "Packets of a Service that other parts of the node have dropped",
            labels=(*SERVICE_LABELS, "reason"),
        )
        with self._lock:
            totals = self._totals
            counted = self._choice.counted(totals, self.ports()) if totals else []
            shown, others = self._choice.split(counted)
            reasons = [*self._reasons]
        for labels, counts in labelled(shown, others, self._sums.fields):
            for reason, count in zip(reasons, counts, strict=False):
                if count:
                    family.add_metric((*labels, reason), count)
        yield family

    def _unit(self, reason: str) -> int:
        known = self._reasons
        if reason not in known and len(known) >= MOST_REASONS - 1:
            reason = OTHER_REASON
        if reason not in known:
            known[reason] = self._sums.number(
                int(field == len(known)) for field in range(MOST_REASONS)
            )
        return known[reason]
