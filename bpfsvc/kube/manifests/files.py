"""The files of a directory of manifests, and when a change of one is believed.

A file that is being written in place is cut short for a moment: malformed, empty, or well-formed
without its last objects. Believing that would report an error that fixes itself, or worse, remove
Services. So whatever would take something away (objects, or a good state) is read again after the
settle time and only then counts. What adds something counts at once.
"""

from __future__ import annotations

import os
import stat
import threading
import time
from collections.abc import Collection, Iterator
from functools import partial
from itertools import chain, groupby
from operator import itemgetter
from pathlib import Path
from typing import NamedTuple

from bpfsvc.kube.manifests.documents import (
    Content,
    Objects,
    Stopped,
    Unusable,
    find_lines,
    object_text,
    read,
)
from bpfsvc.kube.manifests.tree import ManifestTree, stamp
from bpfsvc.kube.source import ParseError, origin
from bpfsvc.model import ModelObject, ObjectKey

_CONFLICTS_LISTED = 10
_PIECE = 4096  # bytes


class Difference(NamedTuple):
    """Objects with new values, and objects that are no more."""

    puts: tuple[ModelObject, ...] = ()
    gone: tuple[ObjectKey, ...] = ()


class _Conflict(NamedTuple):
    """A problem of a file that defines what ``winner``, an earlier file or itself, has defined."""

    winner: str
    problem: ParseError


class _Waiting(NamedTuple):
    """A file that is read again at ``until``; ``stamp`` is its version when the wait began."""

    stamp: int
    until: float


class _Reading(NamedTuple):
    """A file as it is at this moment.

    * ``objects``: ``None`` if the file cannot be used.
    * ``problems``: why, or which of its objects cannot be read.
    * ``written``: when the file was last changed, in Unix seconds.
    * ``is_whole``: false if the last line may be cut short.
    """

    objects: Objects | None = ()
    problems: tuple[ParseError, ...] = ()
    stamp: int = 0
    written: float | None = None
    is_whole: bool = True


class FileCache:
    """All files of a directory of manifests; ``settle`` is in seconds.

    Two files may define the same object, by mistake or while a file is being renamed. The first
    file in the order of names counts, and the first place in it.
    """

    def __init__(self, directory: Path, settle: float, stop: threading.Event) -> None:
        self.objects: dict[ObjectKey, ModelObject] = {}
        self.is_missing = False
        """True if the directory itself is missing."""
        self._directory = directory
        self._settle = settle
        self._stop = stop
        self._files: dict[str, Objects] = {}
        """The last good objects of each file that has any."""
        self._stamps: dict[str, int] = {}
        self._broken: dict[str, tuple[ParseError, ...]] = {}
        self._waiting: dict[str, _Waiting] = {}
        self._unreadable: tuple[ParseError, ...] = ()
        self._conflicts: list[_Conflict] = []
        """Some objects that are defined twice, and one entry for all others."""

    def compare(self, tree: ManifestTree) -> Difference:
        """Read every file that differs from what a walk found, and every file that is due.

        Raises :class:`Stopped` soon after ``stop`` is set.
        """
        self._unreadable = tree.problems
        unreadable = tuple(problem.file.removeprefix("./") for problem in tree.problems)
        names = [
            name
            for name, current in tree.files.items()
            if not current or self._stamps.get(name) != current or name in self._waiting
        ]
        names += [
            name
            for name in {*self._stamps, *self._waiting}
            if name not in tree.files and not name.startswith(unreadable)
        ]
        before: dict[str, Objects] = {}
        for name in names:
            objects = self._files.get(name, ())
            if self._reread(name, tree.files.get(name, 0)):
                before[name] = objects
        return self._apply(before)

    def until_due(self, longest: float) -> float:
        """Return for how long no file is due, in seconds; 0 if a file is due."""
        first = min((waiting.until for waiting in self._waiting.values()), default=float("inf"))
        return min(longest, max(0.0, first - time.monotonic()))

    @property
    def is_settled(self) -> bool:
        """True if no file waits to be read again."""
        return not self._waiting

    def problems(self) -> tuple[ParseError, ...]:
        """Return all that is wrong now, in the order of files."""
        if self.is_missing:
            reason = "the directory is missing; what it last held stays in force"
            return (ParseError(str(self._directory), 0, reason),)
        # A rename in two steps looks like a conflict until the old name is known to be gone.
        conflicts = [
            problem
            for winner, problem in self._conflicts
            if self._waiting.keys().isdisjoint((winner, problem.file))
        ]
        problems = chain(self._unreadable, *self._broken.values(), conflicts)
        return tuple(sorted(problems, key=itemgetter(0, 1, 2)))

    def _reread(self, name: str, current: int) -> bool:
        """Read a file again, and believe it or wait; true if it is believed and good."""
        if self._stop.is_set():
            raise Stopped
        waiting = self._waiting.pop(name, None)
        if waiting and waiting.stamp == current and time.monotonic() < waiting.until:
            self._waiting[name] = waiting
            return False
        reading = self._read(name)
        if self._is_doubtful(name, reading):
            now = time.monotonic()
            if waiting is None or waiting.stamp != reading.stamp:
                age = time.time() - reading.written if reading.written is not None else 0.0
                # A clock that jumped must not make the wait longer than the settle time.
                waiting = _Waiting(reading.stamp, now + min(self._settle, self._settle - age))
            if now < waiting.until:
                self._waiting[name] = waiting
                return False
        self._stamps[name] = reading.stamp
        if not reading.stamp and reading.objects is not None:
            del self._stamps[name]
        self._broken.pop(name, None)
        if reading.problems:
            self._broken[name] = reading.problems
        if reading.objects is None:
            return False
        self._files.pop(name, None)
        if reading.objects:
            self._files[name] = reading.objects
        return True

    def _read(self, name: str) -> _Reading:
        version, written = 0, None
        try:
            data, status = _load(self._directory, name)
            version, written = stamp(status), status.st_mtime
            content = read(name, data, self._stop)
        except FileNotFoundError:
            return _Reading()
        except Unusable as error:
            return _Reading(None, error.problems, version, written)
        is_whole = name.endswith(".json") or data.endswith(b"\n")
        objects = *content.objects, *self._kept(name, content)
        return _Reading(objects, content.problems, version, written, is_whole)

    def _kept(self, name: str, content: Content) -> Iterator[ModelObject]:
        """Yield the last good values of objects of a file that cannot be read now.

        A broken object without a name may be any that the file had.
        """
        broken = {problem.key for problem in content.problems}
        if not broken:
            return
        present = {item.key for item in content.objects}
        for item in self._files.get(name, ()):
            is_broken = None in broken or origin(item) in broken
            if is_broken and item.key not in present:
                yield item

    def _is_doubtful(self, name: str, reading: _Reading) -> bool:
        if reading.problems and reading.problems != self._broken.get(name):
            return True
        if reading.objects is None:
            return False
        before = {item.key for item in self._files.get(name, ())}
        return bool(before) and (
            not reading.is_whole or not before <= {item.key for item in reading.objects}
        )

    def _apply(self, before: dict[str, Objects]) -> Difference:
        """Return what the change of some files changes, by what these files held before.

        Without conflicts the changed files alone show the difference.
        """
        removed = {item.key: item for objects in before.values() for item in objects}
        new = [item for name in before for item in self._files.get(name, ())]
        added = {item.key: item for item in new}
        defined_twice = len(added) < len(new) or any(
            key in self.objects and key not in removed for key in added
        )
        if defined_twice or self._conflicts:
            removed, added = self.objects, self._resolve()
            self.objects = added
        else:
            for key in removed.keys() - added.keys():
                del self.objects[key]
            self.objects.update(added)
        return Difference(
            tuple(item for key, item in added.items() if removed.get(key) != item),
            tuple(key for key in removed if key not in added),
        )

    def _resolve(self) -> dict[ObjectKey, ModelObject]:
        """Go through all files in order; the first definition of an object counts."""
        objects: dict[ObjectKey, ModelObject] = {}
        winners: dict[ObjectKey, str] = {}
        repeated: list[tuple[str, int, ObjectKey]] = []
        for name in sorted(self._files):
            for number, item in enumerate(self._files[name]):
                winners.setdefault(item.key, name)
                if objects.setdefault(item.key, item) is not item:
                    repeated.append((name, number, item.key))
        self._conflicts = []
        for name, group in groupby(repeated[:_CONFLICTS_LISTED], itemgetter(0)):
            keys = {number: key for _, number, key in group}
            lines = self._lines(name, keys)
            for number, key in keys.items():
                winner = winners[key]
                reason = f"is already defined in {winner}, which counts"
                if winner == name:
                    reason = "is already defined above; the first counts"
                reason = f"{object_text(key)} {reason}"
                problem = ParseError(name, lines.get(number, 0), reason, hides=False)
                self._conflicts.append(_Conflict(winner, problem))
        if rest := repeated[_CONFLICTS_LISTED:]:
            name, _, key = rest[0]
            reason = f"{len(rest)} more objects, from here on, are defined twice"
            problem = ParseError(name, 0, reason, hides=False)
            self._conflicts.append(_Conflict(winners[key], problem))
        return objects

    def _lines(self, name: str, numbers: Collection[int]) -> dict[int, int]:
        try:
            return find_lines(name, _load(self._directory, name)[0], numbers)
        except (Unusable, FileNotFoundError):
            return {}


def _load(directory: Path, name: str) -> tuple[bytes, os.stat_result]:
    """Read a file and its status.

    Raises ``FileNotFoundError`` if there is no such name, :class:`Unusable` if it cannot be read.
    """
    path = f"{directory}/{name}"
    try:
        # A pipe must not block the agent. No file object: there may be twenty thousand files.
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
        try:
            status = os.fstat(descriptor)
            if not stat.S_ISREG(status.st_mode):
                raise Unusable(ParseError(name, 0, "is not a regular file"))
            size = max(status.st_size + 1, _PIECE)  # some file systems do not know it
            return b"".join(iter(partial(os.read, descriptor, size), b"")), status
        finally:
            os.close(descriptor)
    except FileNotFoundError:
        if os.path.islink(path):  # noqa: PTH114
            reason = "is a link to a file that does not exist"
            raise Unusable(ParseError(name, 0, reason)) from None
        raise
    except OSError as error:
        raise Unusable(ParseError(name, 0, f"cannot be read: {error.strerror}")) from error
