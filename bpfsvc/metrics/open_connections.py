"""TCP connections that are open to each Service, and how they are spread over its backends.

Clients that keep connections for long never come to a backend that is new: one backend may have
most of the connections while another has none. Three gauges show that without a series for each
backend.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator
from typing import NamedTuple

from prometheus_client.metrics_core import GaugeMetricFamily, Metric

from bpfsvc.base.service_series import ServiceSeries
from bpfsvc.metrics.kernel_maps import ConnectionTable
from bpfsvc.metrics.pace import Pace
from bpfsvc.metrics.traffic import SERVICE_LABELS, service_labels
from bpfsvc.services.plans.applied import Applied, AppliedState


class _Spread(NamedTuple):
    open: int
    busiest: int
    applied: Applied


class ServiceOpenConnections:
    """What the last pass over the table has counted, by service port."""

    def __init__(
        self, connections: ConnectionTable, applied_state: AppliedState, series: ServiceSeries
    ) -> None:
        self._connections = connections
        self._applied_state = applied_state
        self._series = series

    def collect(self) -> Iterator[Metric]:
        """Yield the families; a service port without an open connection is in none of them."""
        spreads = self._shown()
        for name, text, values in (
            ("", "TCP connections open to a Service", (spread.open for spread in spreads)),
            (
                "_busiest",
                "TCP connections open to the backend of a Service that has most of them",
                (spread.busiest for spread in spreads),
            ),
            (
                "_backends",
                "Backends of a Service that has open TCP connections",
                (len(spread.applied.counter_ids) for spread in spreads),
            ),
        ):
            family = GaugeMetricFamily(
                f"bpfsvc_service_open_connections{name}", text, labels=SERVICE_LABELS
            )
            for spread, value in zip(spreads, values, strict=True):
                family.add_metric(service_labels(spread.applied), value)
            yield family

    def _shown(self) -> list[_Spread]:
        """Return the spreads that are shown: of the chosen Services, or where most are open."""
        counts = self._connections.open_connections
        spreads = []
        for applied in Pace().over(self._applied_state.snapshot()) if counts else ():
            if ids := applied.counter_ids & counts.keys():
                of_backends = [counts[index] for index in ids]
                spreads.append(_Spread(sum(of_backends), max(of_backends), applied))
        series = self._series
        if series.shows_all:
            return spreads
        if series.patterns:
            return [spread for spread in spreads if series.matches(*spread.applied.port[:2])]
        return heapq.nlargest(series.most or 0, spreads, key=lambda spread: spread.open)
