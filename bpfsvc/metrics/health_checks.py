"""The families of ``/metrics/slis``: if each health check passes, and how often it has."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Iterator, Mapping

from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily, Metric

from bpfsvc.metrics.exposition import exposition


class HealthCheckFamilies:
    """Runs the checks and counts their results, each time the families are asked for."""

    def __init__(self, checks: Mapping[str, Callable[[], bool]]) -> None:
        """``checks`` by the kind of health (``healthz``, ``livez``); True if it is good."""
        self._checks: dict[tuple[str, str], Callable[[], bool]] = {
            ("ping", "healthz"): lambda: True,
            **{("proxy", kind): check for kind, check in checks.items()},
        }
        self._lock = threading.Lock()
        self._counts: Counter[tuple[str, str, str]] = Counter()

    def render(self) -> bytes:
        """Run the checks and return the text."""
        return exposition(self)

    def collect(self) -> Iterator[Metric]:
        """Yield the families, as a collector does."""
        results = GaugeMetricFamily(
            "kubernetes_healthcheck", "1 if a health check passes", labels=("name", "type")
        )
        counts = CounterMetricFamily(
            "kubernetes_healthchecks",
            "Results of health checks",
            labels=("name", "status", "type"),
        )
        for (name, kind), check in self._checks.items():
            passed = check()
            results.add_metric((name, kind), passed)
            with self._lock:
                self._counts[name, "success" if passed else "error", kind] += 1
        with self._lock:
            for labels, count in self._counts.items():
                counts.add_metric(labels, count)
        yield results
        yield counts
