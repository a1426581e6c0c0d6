"""The text that Prometheus reads (version 0.0.4), written by prometheus_client."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Protocol

from prometheus_client import Metric, generate_latest
from prometheus_client.registry import Collector

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"


class Source(Protocol):
    """A registry, or a collector of its own."""

    def collect(self) -> Iterable[Metric]:
        """Return the families, each with all samples of one name."""


def exposition(source: Source) -> bytes:
    """Return all families of a source as text."""
    return generate_latest(_GoBounds(source))


class _GoBounds(Collector):
    """Writes the bounds of buckets as Go does: ``1`` where prometheus_client writes ``1.0``.

    The bound is part of a bucket's name (its label ``le``). While a cluster moves from kube-proxy
    to this agent, queries add the buckets of both.
    """

    def __init__(self, source: Source) -> None:
        self._source = source

    def collect(self) -> Iterator[Metric]:
        """Yield the families of the source."""
        for family in self._source.collect():
            if family.type == "histogram":
                family.samples = [
                    sample._replace(
                        labels={**sample.labels, "le": sample.labels["le"].removesuffix(".0")}
                    )
                    if "le" in sample.labels
                    else sample
                    for sample in family.samples
                ]
            yield family
