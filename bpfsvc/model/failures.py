"""Failed connections of a Service, counted: one record for each way to fail, and each period.

The agent keeps records of short periods (:mod:`bpfsvc.agent.history.failures`), and a command adds
those that it is asked for.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import msgspec

from bpfsvc.model.events import Event, reason_text

REFUSED, DROPPED, DROPPED_ELSEWHERE = "refused", "dropped", "dropped elsewhere"
UNANSWERED, UNREACHABLE = "unanswered", "unreachable"
"""Kinds of failures; the last two are those of a backend."""

BACKEND_RESET = "backend_reset"
"""The reason of a refusal by a backend."""

_KINDS = {
    "refused": REFUSED,
    "dropped": DROPPED,
    "dropped_elsewhere": DROPPED_ELSEWHERE,
    "repeated": UNANSWERED,
}
"""By the kinds of events."""

CLIENTS = 3
"""Examples of clients that a record names."""

FailureKey = tuple[str, str, str, str]


class Failure(msgspec.Struct):
    """Connections of one service port that failed in one way.

    * ``service``: ``namespace/name:port``, or "-".
    * ``kind``: refused, dropped, dropped elsewhere (packets, not connections), unanswered or
      unreachable.
    * ``reason``: of :data:`bpfsvc.model.events.REASONS`, the kernel's name, or empty.
    * ``backend``: its address and port, then its pod and node if they are known; empty if none
      was chosen.
    * ``count``: how many. ``first``, ``last``: in Unix seconds.
    * ``clients``: some examples; none if nobody has seen the packets.
    """

    service: str
    kind: str
    reason: str = ""
    backend: str = ""
    count: int = 0
    first: float = 0.0
    last: float = 0.0
    clients: list[str] = []

    @property
    def key(self) -> FailureKey:
        """What tells this way to fail from others: the names of a backend do not."""
        return self.service, self.kind, self.reason, self.backend.partition(" ")[0]

    def fields(self) -> dict[str, Any]:
        """Return the fields by their names."""
        return msgspec.structs.asdict(self)

    def copy(self) -> Failure:
        """Return an equal record that can be added to."""
        return msgspec.structs.replace(self, clients=[*self.clients])

    def add(self, other: Failure) -> None:
        """Add a record of the same key."""
        self.count += other.count
        self.first, self.last = min(self.first, other.first), max(self.last, other.last)
        self.backend = max(self.backend, other.backend, key=len)
        new = [client for client in other.clients if client not in self.clients]
        self.clients = [*self.clients, *new][:CLIENTS]

    def text(self) -> str:
        """Return what happened, without its times and clients."""
        by = {
            REFUSED: f" by {self.backend}",
            DROPPED_ELSEWHERE: f" to or from {self.backend}",
            UNANSWERED: f" by {self.backend}",
            UNREACHABLE: f": no packet reaches {self.backend}",
        }.get(self.kind, "")
        why = f": {reason_text(self.reason)}" if self.reason else ""
        return f"{self.service}: {self.kind}{by if self.backend else ''}{why}"


def failure_of(event: Event) -> Failure | None:
    """Return what failed; None for an event that is no failure.

    What fails at its backend is counted by the programs, whether it is observed or not: such a
    record has a client and the count 0.
    """
    kind = _KINDS.get(event.kind)
    if event.lost or kind is None:
        return None
    at_backend = kind == UNANSWERED or event.reason == BACKEND_RESET
    return Failure(
        event.service.text,
        kind,
        event.reason,
        event.backend.text if event.backend.address else "",
        0 if at_backend else event.sample,
        event.time,
        event.time,
        [event.client.pod or event.client.node or event.client.address],
    )


def added(records: Iterable[Failure]) -> list[Failure]:
    """Return one record for each way to fail; the last to happen is the last."""
    sums: dict[FailureKey, Failure] = {}
    for record in records:
        known = sums.setdefault(record.key, record)
        if known is not record:
            known.add(record)
    for known in sums.values():
        known.count = max(known.count, len(known.clients))
    return sorted(sums.values(), key=lambda failure: failure.last)
