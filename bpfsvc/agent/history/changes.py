"""What has changed in Services, and when; ``bpfsvc history -o json`` shows these records."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from bpfsvc.agent.history.saved_records import (
    FAILURES_SHARE,
    MEGABYTE,
    SavedRecords,
    json_array,
)
from bpfsvc.agent.returned_endpoints import ReturnedEndpoints
from bpfsvc.model.answers import TOGETHER, ChangeRecord, Names, OtherVersion, decode, encode
from bpfsvc.services.cache import ServiceKey
from bpfsvc.services.plans.applied import AppliedState
from bpfsvc.services.plans.changes import Difference, service_changes
from bpfsvc.services.plans.plan import Plan

_NAMES = 64
"""Endpoints and frontends that a record names; the others are only counted."""

_TOGETHER = 100
"""Services of one plan that get a record each; a larger plan gets one record with their names."""


class History:
    """Records of changes. The agent's thread adds to them, and any thread reads them."""

    def __init__(self, path: Path | None, megabytes: int) -> None:
        """``path``: of the newer file; None: records end with the agent. 0 ``megabytes``: none."""
        most = megabytes * (MEGABYTE - FAILURES_SHARE)
        self._records = SavedRecords(path, most)
        self._is_on = most > 0
        self._lock = threading.Lock()
        self._arrived = 0.0
        self._returned = ReturnedEndpoints()

    def load(self) -> None:
        """Begin with what earlier agents of this node have saved; skip what is damaged."""
        for line in self._records.saved_lines():
            with suppress(OtherVersion):
                self._records.add(decode(line, ChangeRecord).services, line, is_saved=True)

    @contextmanager
    def caused_at(self, arrived: float) -> Iterator[None]:
        """Changes inside are due to something that arrived then, by the monotonic clock."""
        self._arrived = arrived
        try:
            yield
        finally:
            self._arrived = 0.0

    def note(self, plan: Plan, applied: AppliedState) -> int:
        """Record what a plan has changed in the kernel; ``applied`` is the state before.

        Return how many endpoints have come back to a Service that they had left lately.
        """
        if not self._is_on:
            return 0
        returned = 0
        waited = round((time.monotonic() - self._arrived) * 1000, 1) if self._arrived else None
        now = round(time.time(), 3)
        with self._lock:
            for record in _records(plan, applied, now, waited):
                self._records.add(record.services, encode(record))
                returned += self._returned.note(record)
        return returned

    def json(self, service: ServiceKey | None) -> bytes:
        """Return the records of a Service, or of all, as a JSON array; the oldest come first."""
        with self._lock:
            texts = self._records.texts("/".join(service) if service else "")
        return json_array(texts)

    def save(self) -> None:
        """Write what is new to the file."""
        with self._lock:
            lines = self._records.take_unsaved()
        self._records.write(lines)


def _records(
    plan: Plan, applied: AppliedState, now: float, waited: float | None
) -> Iterator[ChangeRecord]:
    names = sorted({f"{port.namespace}/{port.name}" for port in plan.applied})
    if len(names) > _TOGETHER:
        yield ChangeRecord(at=now, services=names, what=TOGETHER, waited_ms=waited)
        return
    for change in service_changes(plan.applied, applied):
        yield ChangeRecord(
            at=now,
            services=["/".join(change.service)],
            what=change.what,
            endpoints=_bounded(change.endpoints),
            frontends=_bounded(change.frontends),
            waited_ms=waited,
        )


def _bounded(difference: Difference) -> Names:
    added, removed = difference.added[:_NAMES], difference.removed[:_NAMES]
    more = len(difference.added) + len(difference.removed) - len(added) - len(removed)
    return Names([*added], [*removed], more)
