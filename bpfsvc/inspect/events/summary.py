"""What became of connections, summed up for each backend: the slow one stands out."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterator
from statistics import median
from typing import Any

from bpfsvc.base.texts import count_text
from bpfsvc.inspect.tables import line_pattern
from bpfsvc.model.events import Event, reason_text

_TIMES = 1000
"""The latest times of a backend that are kept: a summary may be made for hours."""

_FEWEST = 3
"""Times of a backend that are compared: one slow packet is no slow backend."""

_FACTOR = 3
"""A backend is slow if its median is so many times that of the others, and longer by so many ms."""

_CONNECT_MS = 5.0
_LASTED_MS = 50.0

_CLIENTS = 3
"""Clients of dropped packets that are told apart, for each backend and reason."""

_OTHERS = "others"

_INDENT = " " * 4

_HEAD = ("  BACKEND", "MADE", "ANSWERED", "REPEATED", "FAILED", "CONNECT", "WORST", "LASTED")


class BackendSummary:
    """Connections of one service port to one backend; ``backend`` is "-" if none was chosen."""

    def __init__(self, backend: str) -> None:
        self.backend = backend
        self.counts = dict.fromkeys(("made", "answered", "repeated", "failed"), 0)
        self.failures: Counter[tuple[str, str]] = Counter()
        """By kind of event and reason."""
        self.dropped_elsewhere: dict[str, Counter[str]] = {}
        """Packets by the kernel's reason, and by their client and where they were to go."""
        self.made_by_sockets = 0
        self.connect: deque[float] = deque(maxlen=_TIMES)
        self.lasted: deque[float] = deque(maxlen=_TIMES)

    def add(self, event: Event) -> None:
        """Count an event, and those that it stands for."""
        is_failure = event.kind in ("refused", "dropped")
        kind = "failed" if is_failure else event.kind
        if kind in self.counts:
            self.counts[kind] += event.sample
        if is_failure:
            self.failures[event.kind, event.reason] += event.sample
        elif event.kind == "dropped_elsewhere":
            self._add_dropped(event)
        elif event.kind == "made" and event.path == "socket":
            self.made_by_sockets += event.sample
        if event.took_ms is None:
            return
        if event.kind == "answered":
            self.connect.append(event.took_ms)
        elif event.kind == "ended":
            self.lasted.append(event.took_ms)

    def _add_dropped(self, event: Event) -> None:
        ends = self.dropped_elsewhere.setdefault(event.reason, Counter())
        client, receiver = event.client, event.backend if event.backend.address else event.frontend
        name = f"{client.pod or client.address} -> {receiver.pod or receiver.place}"
        ends[name if name in ends or len(ends) < _CLIENTS else _OTHERS] += event.sample

    def cells(self) -> tuple[str, ...]:
        """Return the cells of its line; times are medians, and the worst to connect."""
        worst = _ms(max(self.connect)) if self.connect else "-"
        times = (_median_text(self.connect), worst, _median_text(self.lasted))
        return (f"  {self.backend}", *map(str, self.counts.values()), *times)

    def remarks(self) -> Iterator[str]:
        """Yield what the cells do not say: who refused and dropped, and what is not seen."""
        for (kind, reason), count in self.failures.most_common():
            yield f"{count} {kind}: {reason_text(reason)}"
        for reason, ends in self.dropped_elsewhere.items():
            yield f"DROPPED ELSEWHERE: {reason_text(reason)}"
            for name, count in ends.most_common():
                yield f"{_INDENT}{name}: {count_text(count, 'packet')}"
        if self.made_by_sockets:
            yield f"{self.made_by_sockets} made by sockets: answers are seen for TCP only"

    def to_object(self) -> dict[str, Any]:
        """Return the same as an object for JSON; times are medians in milliseconds."""
        return {
            "backend": self.backend,
            **self.counts,
            "made_by_sockets": self.made_by_sockets,
            "connect_ms": median(self.connect) if self.connect else None,
            "failures": [
                {"kind": kind, "reason": reason, "count": count}
                for (kind, reason), count in self.failures.most_common()
            ],
            "dropped_elsewhere": [
                {"reason": reason, "ends": name, "packets": count}
                for reason, ends in self.dropped_elsewhere.items()
                for name, count in ends.most_common()
            ],
        }


class Summary:
    """Backends by service port, in the order of their first events."""

    def __init__(self) -> None:
        self._services: dict[str, dict[str, BackendSummary]] = {}

    def add(self, event: Event) -> None:
        """Count an event."""
        backends = self._services.setdefault(f"{event.service.text} {event.protocol}", {})
        name = event.backend.text if event.backend.address else "-"
        backends.setdefault(name, BackendSummary(name)).add(event)

    def to_objects(self) -> list[dict[str, Any]]:
        """Return an object for JSON for each backend of each service port."""
        return [
            {"service": service, "protocol": protocol, **backend.to_object()}
            for name in sorted(self._services)
            for service, _, protocol in [name.rpartition(" ")]
            for backend in self._services[name].values()
        ]

    def lines(self) -> Iterator[str]:
        """Yield a block for each service port, and a line for each of its backends."""
        for service in sorted(self._services):
            backends = sorted(self._services[service].values(), key=lambda known: known.backend)
            rows = [backend.cells() for backend in backends]
            pattern = line_pattern([_HEAD, *rows], [False, *[True] * 7])
            yield service
            yield pattern.format(*_HEAD)
            for backend, row in zip(backends, rows, strict=True):
                yield pattern.format(*row)
                remarks = (*backend.remarks(), *_slow_remarks(backend, backends))
                yield from (f"{_INDENT}{text}" for text in remarks)


def _slow_remarks(backend: BackendSummary, every: list[BackendSummary]) -> Iterator[str]:
    """Yield what is slow about a backend: for most, nothing."""
    others = [other for other in every if other is not backend]
    connect = [other.connect for other in others]
    if slow := _slow(backend.connect, connect, _CONNECT_MS):
        yield f"SLOW to connect: {slow}"
    if slow := _slow(backend.lasted, [other.lasted for other in others], _LASTED_MS):
        yield f"SLOW to end its connections: {slow}"


def _slow(times: deque[float], others: list[deque[float]], least: float) -> str:
    compared = [median(other) for other in others if len(other) >= _FEWEST]
    if len(times) < _FEWEST or not compared:
        return ""
    own, usual = median(times), median(compared)
    if own < _FACTOR * usual or own < usual + least:
        return ""
    return f"{_ms(own)}, and the others {_ms(usual)}"


def _median_text(times: deque[float]) -> str:
    return _ms(median(times)) if times else "-"


def _ms(value: float) -> str:
    return f"{value:.2f} ms" if value < 10 else f"{value:.0f} ms"
