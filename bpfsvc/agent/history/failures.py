"""Which connections failed, and when: counted by Service, kind, reason and backend.

The first failure of a kind is a record at once. Those that follow are counted, and are one record
every half minute: a Service that fails all night has a bounded number of records. An agent that is
killed loses at most the counts of that time, and the kinds that it has seen in the last second.
"""

from __future__ import annotations

import threading
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from bpfsvc.agent.history.saved_records import FAILURES_SHARE, SavedRecords, json_array
from bpfsvc.model.answers import OtherVersion, decode, encode
from bpfsvc.model.failures import Failure, FailureKey
from bpfsvc.services.cache import ServiceKey

SECONDS = 30.0
"""From one record of a kind of failures to the next one."""

MOST_KINDS = 4096
"""Kinds that are counted at a time; beyond that, all become records."""


@dataclass(slots=True)
class _Counted:
    """Failures of one kind; ``record``: those that are no record yet."""

    due: float
    record: Failure | None


class FailureHistory:
    """Records of failures. Any thread adds to them, and any thread reads them."""

    def __init__(self, path: Path | None, megabytes: int) -> None:
        """``path``: of the history; None: records end with the agent. 0 ``megabytes``: none."""
        most = megabytes * FAILURES_SHARE
        self._records = SavedRecords(path and path.with_name(path.name + ".failures"), most)
        self._is_on = most > 0
        self._counted: dict[FailureKey, _Counted] = {}
        self._lock = threading.Lock()

    def load(self) -> None:
        """Begin with what earlier agents of this node have saved; skip what is damaged."""
        for line in self._records.saved_lines():
            with suppress(OtherVersion):
                self._records.add([_service(decode(line, Failure))], line, is_saved=True)

    def note(self, failure: Failure) -> None:
        """Count failures of one kind."""
        if not self._is_on:
            return
        with self._lock:
            counted = self._counted.get(failure.key)
            if counted is None:
                if len(self._counted) >= MOST_KINDS:
                    self._settle(float("inf"))
                self._counted[failure.key] = _Counted(0.0, failure.copy())
            elif counted.record is None:
                counted.record = failure.copy()
            else:
                counted.record.add(failure)

    def json(self, service: ServiceKey | None) -> bytes:
        """Return the records of a Service, or of all, as a JSON array.

        Several of them may be of one kind: they are to be added.
        """
        name = "/".join(service) if service else ""
        with self._lock:
            texts = self._records.texts(name)
            new = [counted.record for counted in self._counted.values() if counted.record]
            texts += [encode(record) for record in new if name in ("", _service(record))]
        return json_array(texts)

    def save(self, now: float | None = None) -> None:
        """Write what is new; ``now``: seconds of the monotonic clock, infinite at the end."""
        with self._lock:
            self._settle(time.monotonic() if now is None else now)
            lines = self._records.take_unsaved()
        self._records.write(lines)

    def _settle(self, now: float) -> None:
        """Make records of what is due, and forget kinds that happen no more."""
        for key, counted in [*self._counted.items()]:
            if now < counted.due:
                continue
            if counted.record is None or now == float("inf"):
                del self._counted[key]
            if counted.record is not None:
                self._records.add([_service(counted.record)], encode(counted.record))
                counted.record, counted.due = None, now + SECONDS


def _service(failure: Failure) -> str:
    """Return ``namespace/name``."""
    return failure.service.rpartition(":")[0]
