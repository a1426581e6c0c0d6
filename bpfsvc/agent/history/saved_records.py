"""Records of a bounded size, which outlive the agent.

Each record is a line of JSON. The newest records are in memory, and in two files that take turns. A
file that cannot be written costs the records at the next start, and nothing else.
"""

from __future__ import annotations

import logging
import sys
from collections import deque
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import NamedTuple

from bpfsvc.base.private_file import open_private

MEGABYTE = 1024 * 1024

FAILURES_SHARE = MEGABYTE // 4
"""Bytes of each megabyte of the history that are for failures; the others are for changes."""

_OVERHEAD = 150
"""Bytes that a record takes in memory beside its text and the names of its Services."""

_log = logging.getLogger("bpfsvc")


class _Kept(NamedTuple):
    """The names are shared with other records: often the same few Services change all day."""

    services: tuple[str, ...]
    text: bytes


class SavedRecords:
    """The newest records of one kind. Its user has the lock."""

    def __init__(self, path: Path | None, most: int) -> None:
        """``path``: of the newer file; None: records end with the agent. ``most``: in bytes."""
        self._path = path if most else None
        self._most = most
        self._size = 0
        self._records: deque[_Kept] = deque()
        self._unsaved: list[bytes] = []
        self._logged = ""

    def saved_lines(self) -> Iterator[bytes]:
        """Yield what earlier agents of this node have saved, the oldest first."""
        if self._path is None:
            return
        for path in (_older(self._path), self._path):
            try:
                yield from path.read_bytes().splitlines()
            except FileNotFoundError:
                continue
            except OSError as error:
                _log.warning("the history %s cannot be read: %s", path, error.strerror)

    def add(self, services: Collection[str], line: bytes, *, is_saved: bool = False) -> None:
        """Add a record of Services, and forget the oldest records if they take too much."""
        # msgspec's bytes keep the room of the buffer that it wrote to: up to twice as much.
        kept = _Kept(tuple(map(sys.intern, services)), bytes(memoryview(line)))
        self._records.append(kept)
        self._size += _size(kept)
        while self._size > self._most:
            self._size -= _size(self._records.popleft())
        if self._path and not is_saved:
            self._unsaved.append(kept.text)

    def texts(self, service: str) -> list[bytes]:
        """Return the records of a Service, of all if it is empty; the oldest come first."""
        return [kept.text for kept in self._records if not service or service in kept.services]

    def take_unsaved(self) -> list[bytes]:
        """Return what :meth:`write` has to write: the user has the lock for this alone."""
        lines, self._unsaved = self._unsaved, []
        return lines

    def write(self, lines: list[bytes]) -> None:
        """Append to the file; when the file is full, it becomes the older one."""
        if self._path is None or not lines:
            return
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


def json_array(texts: Collection[bytes]) -> bytes:
    """Return JSON texts as one array."""
    return b"[" + b",".join(texts) + b"]"


def _older(path: Path) -> Path:
    return path.with_name(path.name + ".old")


def _size(kept: _Kept) -> int:
    return len(kept.text) + _OVERHEAD + sum(map(len, kept.services))
