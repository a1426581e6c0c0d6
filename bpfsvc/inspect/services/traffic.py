"""Counts of service ports at one moment, and counts per second.

A backend keeps its counters for as long as it serves its service port; the counters of a former
backend are zeroed and given to another backend. So counts are compared only under the same service
id, backend and counters; a count that has become smaller began anew.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

from bpfsvc.inspect.fields import lacks, names, total
from bpfsvc.inspect.maps.services import backend_traffic
from bpfsvc.inspect.reader import Reader
from bpfsvc.inspect.services.connect_times import ConnectTimes, added, read_connect_times, since
from bpfsvc.inspect.services.facts import BackendFacts, ServicePortFacts
from bpfsvc.services.entries import Place


class Amounts(NamedTuple):
    """Connections, packets and bytes: of a backend or a service port, as counts or per second."""

    connections: float = 0
    packets: float = 0
    bytes: float = 0
    reply_packets: float = 0
    reply_bytes: float = 0


class Failed(NamedTuple):
    """Connections that were opened to a backend and failed: :data:`REASONS`."""

    refused: float = 0
    unanswered: float = 0
    unreachable: float = 0


class Refused(NamedTuple):
    """First packets, or calls of sockets, that were refused: by an answer, or silently."""

    rejected: float = 0
    dropped: float = 0


_Key = tuple[int, Place, int]
"""Service id, backend, index of its counters."""


@dataclass(frozen=True, slots=True)
class Traffic:
    """Counts, or counts per second.

    A backend that has no counters any more has no traffic: None, not zero.
    """

    at: float
    """Of time.monotonic()."""
    backends: dict[_Key, Amounts] = field(default_factory=dict)
    refused: dict[int, Refused] = field(default_factory=dict)
    failed: dict[_Key, Failed] = field(default_factory=dict)
    """Backends without a failure are left out."""
    connects: dict[_Key, ConnectTimes] = field(default_factory=dict)
    """Of clients on this node; never per second. Backends without a connect are left out."""

    def of_backend(self, port: ServicePortFacts, backend: BackendFacts) -> Amounts | None:
        """Return the traffic of one backend, None if it is not counted."""
        return self.backends.get((port.service, backend.endpoint, backend.counters))

    def of_port(self, port: ServicePortFacts) -> Amounts:
        """Return the sum over all present backends."""
        amounts = [self.of_backend(port, backend) for backend in port.backends]
        return Amounts(*map(sum, zip(Amounts(), *filter(None, amounts), strict=True)))

    def failed_of_backend(self, port: ServicePortFacts, backend: BackendFacts) -> Failed:
        """Return the failed connections to one backend."""
        return self.failed.get((port.service, backend.endpoint, backend.counters), Failed())

    def failed_of(self, port: ServicePortFacts) -> Failed:
        """Return the failed connections to all present backends."""
        failed = [self.failed_of_backend(port, backend) for backend in port.backends]
        return Failed(*map(sum, zip(Failed(), *failed, strict=True)))

    def connects_of_backend(self, port: ServicePortFacts, backend: BackendFacts) -> ConnectTimes:
        """Return how long connects to one backend took."""
        return self.connects.get((port.service, backend.endpoint, backend.counters), ConnectTimes())

    def connects_of(self, port: ServicePortFacts) -> ConnectTimes:
        """Return how long connects to all present backends took."""
        times = [self.connects_of_backend(port, backend) for backend in port.backends]
        return added([known for known in times if known.connects])

    def refused_of(self, port: ServicePortFacts) -> Refused:
        """Return the refused packets and calls of a service port."""
        return self.refused.get(port.service, Refused())


def read_traffic(reader: Reader, ports: Iterable[ServicePortFacts]) -> Traffic:
    """Return the counts of service ports."""
    at = time.monotonic()
    indexes: dict[_Key, int] = {}
    services: set[int] = set()
    for port in ports:
        services.add(port.service)
        for backend in port.backends:
            if backend.counters:
                indexes[port.service, backend.endpoint, backend.counters] = backend.counters
    counted = dict(backend_traffic(reader, set(indexes.values())))
    nothing = Amounts()
    backends = {
        key: Amounts(*counted[index]) if index in counted else nothing
        for key, index in indexes.items()
    }
    failures = dict(_failures(reader, set(indexes.values())))
    failed = {key: failures[index] for key, index in indexes.items() if index in failures}
    times = dict(read_connect_times(reader, set(indexes.values())))
    connects = {key: times[index] for key, index in indexes.items() if index in times}
    return Traffic(at, backends, dict(_refusals(reader, services)), failed, connects)


def _failures(reader: Reader, wanted: Collection[int]) -> Iterator[tuple[int, Failed]]:
    """Yield the failed connections by the index of counters; earlier builds count none."""
    layout = reader.layout.maps.get("backend_failures")
    if layout is None or lacks(layout.value, Failed._fields):
        return
    add = total(layout, Failed._fields)
    for key, raw in reader.entries("backend_failures"):
        index = int.from_bytes(key, sys.byteorder)
        if index in wanted:
            yield index, Failed(*add(raw))


def _refusals(reader: Reader, services: Collection[int]) -> Iterator[tuple[int, Refused]]:
    layout = reader.layout.maps.get("refusals")
    if layout is None:
        return
    fields = names(layout.value)
    add = total(layout, fields)
    for key, raw in reader.entries("refusals"):
        service = int.from_bytes(key, sys.byteorder)
        if service not in services:
            continue
        sums = {"rejected": 0, "dropped": 0}
        for name, count in zip(fields, add(raw), strict=True):
            what = name.partition("__")[0]
            if what in sums:
                sums[what] += count
        yield service, Refused(**sums)


def rates(before: Traffic, now: Traffic) -> Traffic:
    """Return the counts per second between two moments."""
    seconds = max(now.at - before.at, 1e-9)
    backends = {
        key: Amounts(*_per_second(before.backends.get(key), amounts, seconds))
        for key, amounts in now.backends.items()
    }
    refused = {
        service: Refused(*_per_second(before.refused.get(service), amounts, seconds))
        for service, amounts in now.refused.items()
    }
    failed = {
        key: Failed(*_per_second(before.failed.get(key), amounts, seconds))
        for key, amounts in now.failed.items()
    }
    connects = {key: since(before.connects.get(key), times) for key, times in now.connects.items()}
    return Traffic(now.at, backends, refused, failed, connects)


def _per_second(
    before: tuple[float, ...] | None, now: tuple[float, ...], seconds: float
) -> list[float]:
    if before == now:
        return [0.0] * len(now)
    # New counters were zeroed when the backend got them.
    if before is None or any(b > n for b, n in zip(before, now, strict=True)):
        return [amount / seconds for amount in now]
    return [(n - b) / seconds for b, n in zip(before, now, strict=True)]
