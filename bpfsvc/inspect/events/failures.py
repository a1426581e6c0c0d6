"""Failures among events: one summary for each kind of failure of a Service."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from bpfsvc.inspect.events.texts import end_text
from bpfsvc.model.events import REASONS, Event

KINDS = ("refused", "dropped", "repeated")

_CLIENTS = 3
"""Examples of clients that a summary names."""


@dataclass(slots=True)
class Failure:
    """Connections of one Service that failed in one way.

    * ``service``: ``namespace/name:port``, or "-".
    * ``kind``: of :data:`KINDS`; ``reason``: of :data:`REASONS`, or empty.
    * ``backend``: with its address, empty if none was chosen.
    * ``count``: events, and those that they stand for.
    * ``first``, ``last``: in Unix seconds. ``clients``: some examples.
    """

    service: str
    kind: str
    reason: str
    backend: str
    count: int
    first: float
    last: float
    clients: list[str]

    def text(self) -> str:
        """Return what happened, without its times and clients."""
        by = f" by {self.backend}" if self.backend and self.kind == "refused" else ""
        to = f" to {self.backend}, which did not answer" if self.kind == "repeated" else ""
        why = f": {REASONS.get(self.reason, self.reason)}" if self.reason else ""
        return f"{self.service}: {self.kind}{by}{to}{why}"


def failures(events: Iterable[Event]) -> list[Failure]:
    """Return the summaries of what failed; the last to happen is the last."""
    summaries: dict[tuple[str, str, str, str], Failure] = {}
    for event in events:
        if event.lost or event.kind not in KINDS:
            continue
        backend = end_text(event.backend) if event.backend.address else ""
        key = event.service.text, event.kind, event.reason, backend
        known = summaries.setdefault(key, Failure(*key, 0, event.time, event.time, []))
        known.count += event.sample
        known.first, known.last = min(known.first, event.time), max(known.last, event.time)
        client = event.client.pod or event.client.node or event.client.address
        if client not in known.clients and len(known.clients) < _CLIENTS:
            known.clients.append(client)
    return sorted(summaries.values(), key=lambda failure: failure.last)
