"""The memory of a node: what changed in its Services, and when, in a bounded size.

Each record is JSON, as ``bpfsvc history -o json`` shows it. The newest records are in memory, and
in two files that take turns, so that they outlive the agent. A file that cannot be written costs
the records at the next start, and nothing else.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import NamedTuple

from bpfsvc.agent.returned_endpoints import ReturnedEndpoints
from bpfsvc.base.private_file import open_private
from bpfsvc.model.answers import TOGETHER, ChangeRecord, Names, OtherVersion, decode, encode
from bpfsvc.services.cache import ServiceKey
from bpfsvc.services.plans.applied import AppliedState
from bpfsvc.services.plans.changes import Difference, service_changes
from bpfsvc.services.plans.plan import Plan

MEGABYTE = 1024 * 1024

_NAMES = 64
"""Endpoints and frontends that a record names; the others are only counted."""

_OVERHEAD = 250
"""Bytes that a record takes in memory beside its text."""

_TOGETHER = 100
"""Services of one plan that get a record each; a larger plan gets one record with their names."""

_log = logging.getLogger("bpfsvc")


class _Kept(NamedTuple):
    services: frozenset[str]
    text: bytes


class History:
    """Records of changes. The agent's thread adds to them, and any thread reads them."""

    def __init__(self, path: Path | None, megabytes: int) -> None:
        """``path``: of the newer file; None: records end with the agent. 0 ``megabytes``: none."""
        self._path = path if megabytes else None
        self._most = megabytes * MEGABYTE
        self._size = 0
        self._records: deque[_Kept] = deque()
        self._unsaved: list[bytes] = []
        self._lock = threading.Lock()
        self._arrived = 0.0
        self._logged = ""
        self._returned = ReturnedEndpoints()

    def load(self) -> None:
        """Begin with what earlier agents of this node have saved; skip what is damaged."""
        if self._path is None:
            return
        for path in (_older(self._path), self._path):
            try:
                lines = path.read_bytes().splitlines()
            except FileNotFoundError:
                continue
            except OSError as error:
                _log.warning("the history %s cannot be read: %s", path, error.strerror)
                continue
            for line in lines:
                with suppress(OtherVersion):
                    self._add(decode(line, ChangeRecord), line)

    # -- adding --

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
        if not self._most:
            return 0
        returned = 0
        waited = round((time.monotonic() - self._arrived) * 1000, 1) if self._arrived else None
        now = round(time.time(), 3)
        with self._lock:
            for record in _records(plan, applied, now, waited):
                line = encode(record)
                self._add(record, line)
                returned += self._returned.note(record)
                if self._path:
                    self._unsaved.append(line)
        return returned

    def _add(self, record: ChangeRecord, line: bytes) -> None:
        kept = _Kept(frozenset(record.services), line)
        self._records.append(kept)
        self._size += _size(kept)
        while self._size > self._most:
            self._size -= _size(self._records.popleft())

    # -- reading --

    def json(self, service: ServiceKey | None) -> bytes:
        """Return the records of a Service, or of all, as a JSON array; the oldest come first."""
        with self._lock:
            records = list(self._records)
        name = "/".join(service) if service else ""
        texts = (kept.text for kept in records if not name or name in kept.services)
        return b"[" + b",".join(texts) + b"]"

    # -- saving --

    def save(self) -> None:
        """Append what is new to the file; when the file is full, it becomes the older one."""
        if self._path is None or not self._unsaved:
            return
        with self._lock:
            lines, self._unsaved = self._unsaved, []
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            with open(self._path, "ab", buffering=0, opener=open_private) as file:
                file.write(b"".join(line + b"\n" for line in lines))
                full = file.tell() > self._most // 2
            if full:
                self._path.replace(_older(self._path))
        except OSError as error:
            self._log_once(f"the history {self._path} cannot be written: {error.strerror}")
        else:
            self._logged = ""

    def _log_once(self, text: str) -> None:
        if text != self._logged:
            _log.warning("%s; bpfsvc history knows nothing from before the next start", text)
        self._logged = text


def _older(path: Path) -> Path:
    return path.with_name(path.name + ".old")


def _size(kept: _Kept) -> int:
    return len(kept.text) + _OVERHEAD + sum(map(len, kept.services))


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
