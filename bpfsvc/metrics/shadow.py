"""The metrics of shadow mode, read from its counts at each scrape."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Protocol

from prometheus_client import CollectorRegistry, ProcessCollector
from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily, Metric

from bpfsvc import __version__
from bpfsvc.metrics.exposition import exposition


class Count(Protocol):
    """Differences of one kind of one Service."""

    @property
    def namespace(self) -> str:
        """Of the Service; empty where no Service is known."""

    @property
    def name(self) -> str:
        """Of the Service."""

    @property
    def kind(self) -> str:
        """What differs."""

    @property
    def number(self) -> int:
        """How often."""


class Totals(Protocol):
    """What was counted so far."""

    @property
    def flows(self) -> int:
        """Connections compared."""

    @property
    def losses(self) -> int:
        """How often connections were missed."""

    @property
    def counts(self) -> Sequence[Count]:
        """The differences."""


class ShadowMetrics:
    """The text of the metrics; ``totals()`` is called at each scrape."""

    def __init__(self, totals: Callable[[], Totals]) -> None:
        self._totals = totals
        self._registry = CollectorRegistry(auto_describe=False)
        ProcessCollector(registry=self._registry)
        self._registry.register(self)

    def render(self) -> bytes:
        """Return the text."""
        return exposition(self._registry)

    def collect(self) -> Iterator[Metric]:
        """Yield the families, as a collector does."""
        totals = self._totals()
        build = GaugeMetricFamily(
            "bpfsvc_build_info", "1, labelled with the version", None, ("version", "programs")
        )
        build.add_metric((__version__, ""), 1)
        yield build
        yield CounterMetricFamily(
            "bpfsvc_shadow_flows", "Connections to Services that were compared", totals.flows
        )
        yield CounterMetricFamily(
            "bpfsvc_shadow_losses",
            "Times that new connections were missed, as there were too many",
            totals.losses,
        )
        differences = CounterMetricFamily(
            "bpfsvc_shadow_differences",
            "Connections of which kube-proxy made something else than bpfsvc would",
            None,
            ("namespace", "service", "kind"),
        )
        for one in totals.counts:
            differences.add_metric((one.namespace, one.name, one.kind), one.number)
        yield differences
