"""The metrics of shadow mode, read from its counts at each scrape."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import NamedTuple

from prometheus_client import CollectorRegistry, ProcessCollector
from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily, Metric

from bpfsvc import __version__
from bpfsvc.metrics.exposition import exposition


class ShadowCounts(NamedTuple):
    """What shadow mode has counted so far.

    * ``flows``: connections compared. ``losses``: how often connections were missed.
    * ``differences``: by namespace and name of the Service, empty where none is known, and kind.
    """

    flows: int
    losses: int
    differences: Mapping[tuple[str, str, str], int]


class ShadowMetrics:
    """The text of the metrics; ``counts()`` is called at each scrape."""

    def __init__(self, counts: Callable[[], ShadowCounts]) -> None:
        self._counts = counts
        self._registry = CollectorRegistry(auto_describe=False)
        ProcessCollector(registry=self._registry)
        self._registry.register(self)

    def render(self) -> bytes:
        """Return the text."""
        return exposition(self._registry)

    def collect(self) -> Iterator[Metric]:
        """Yield the families, as a collector does."""
        counts = self._counts()
        build = GaugeMetricFamily(
            "bpfsvc_build_info", "1, labelled with the version", None, ("version", "programs")
        )
        build.add_metric((__version__, ""), 1)
        yield build
        yield CounterMetricFamily(
            "bpfsvc_shadow_flows", "Connections to Services that were compared", counts.flows
        )
        yield CounterMetricFamily(
            "bpfsvc_shadow_losses",
            "Times that new connections were missed, as there were too many",
            counts.losses,
        )
        differences = CounterMetricFamily(
            "bpfsvc_shadow_differences",
            "Connections that kube-proxy treated differently than bpfsvc would",
            None,
            ("namespace", "service", "kind"),
        )
        for labels, number in counts.differences.items():
            differences.add_metric(labels, number)
        yield differences
