"""The files of a directory of manifests, and when a change of one is believed.

A file that is being written in place is cut short for a moment: malformed, empty, or well-formed
without its last objects. Believing that would report an error that fixes itself, or worse, remove
Services. So whatever would take something away (objects, or a good state) is read again after the
settle time and only then counts. What adds something counts at once, and so does a good file that
was renamed into place, since it is complete when it appears.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping
from itertools import chain, islice
from pathlib import Path
from typing import Literal, NamedTuple

from bpfsvc.kube.manifests import documents
from bpfsvc.kube.manifests.contents import NOTHING, Contents, Stopped, Unusable, load, parse, split
from bpfsvc.kube.manifests.object_index import Conflict, Difference, ObjectIndex
from bpfsvc.kube.manifests.tree import ManifestTree, stamp
from bpfsvc.kube.source import ParseError

Change = Literal["written", "replaced", "absent"]
"""How a file changed: in place or unknown, renamed into place, or no longer there."""

_CONFLICTS_LISTED = 10


class _Waiting(NamedTuple):
    """A file that is read again at ``until``; ``stamp`` is its version when the wait began."""

    change: Change
    stamp: int
    until: float


class _Reading(NamedTuple):
    """A file as it is at this moment.

    * ``contents``: ``None`` if it cannot be used; ``problems`` has the reasons.
    * ``written``: when it was last changed, in Unix seconds.
    * ``is_whole``: false if its last line may be cut short.
    """

    contents: Contents | None
    problems: tuple[ParseError, ...] = ()
    stamp: int = 0
    written: float | None = None
    is_whole: bool = True


class FileCache:
    """All files of a directory of manifests.

    ``settle`` is in seconds. Every method that reads raises ``Stopped`` soon after ``stop`` is set.
    """

    def __init__(self, directory: Path, settle: float, stop: threading.Event) -> None:
        self.index = ObjectIndex()
        self.is_missing = False
        """True if the directory itself is missing."""
        self._directory = directory
        self._settle = settle
        self._stop = stop
        self._stamps: dict[str, int] = {}
        self._broken: dict[str, tuple[ParseError, ...]] = {}
        self._waiting: dict[str, _Waiting] = {}
        self._unreadable: tuple[ParseError, ...] = ()
        self._explained: tuple[Conflict, ...] = ()
        self._conflicts: list[tuple[Conflict, ParseError]] = []

    def compare(self, tree: ManifestTree) -> Difference:
        """Read every file that differs from what a walk found."""
        self._unreadable = tree.problems
        changes: dict[str, Change] = {
            name: "written"
            for name, found in tree.files.items()
            if self._stamps.get(name) != found or not found
        }
        under_unreadable = tuple(problem.file.removeprefix("./") for problem in tree.problems)
        for name in self._stamps:
            if name not in tree.files and not name.startswith(under_unreadable):
                changes[name] = "absent"
        return self.take(changes | self.due())

    def take(self, changes: Mapping[str, Change]) -> Difference:
        """Read some files again; return what that changes."""
        believed: dict[str, Contents] = {}
        for name, change in changes.items():
            if self._stop.is_set():
                raise Stopped
            reading = self._read(name, change)
            if self._must_wait(name, change, reading):
                continue
            if reading.contents is None:
                self._broken[name] = reading.problems
            else:
                believed[name] = reading.contents
                self._broken.pop(name, None)
            self._stamps[name] = reading.stamp
            if reading.contents is NOTHING and not reading.stamp:
                del self._stamps[name]
        return self.index.apply(believed)

    def due(self) -> dict[str, Change]:
        """Return the files whose settle time has passed."""
        now = time.monotonic()
        return {
            name: waiting.change for name, waiting in self._waiting.items() if waiting.until <= now
        }

    def until_due(self, longest: float) -> float:
        """Return for how long no file is due, in seconds."""
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
        if self.index.conflicts is not self._explained:
            self._explained = self.index.conflicts
            self._conflicts = self._explain(self._explained)
        # A rename in two steps looks like a conflict until the old name is known to be gone.
        conflicts = [
            problem
            for conflict, problem in self._conflicts
            if self._waiting.keys().isdisjoint((conflict.winner, conflict.loser))
        ]
        return tuple(sorted(chain(self._unreadable, *self._broken.values(), conflicts)))

    def _read(self, name: str, change: Change) -> _Reading:
        if change == "absent":
            return _Reading(NOTHING)
        version, written = 0, None
        try:
            data, status = load(self._directory, name)
            version, written = stamp(status), status.st_mtime
            contents = parse(name, data, self.index.file(name), self._stop)
        except FileNotFoundError:
            return _Reading(NOTHING)
        except Unusable as error:
            return _Reading(None, error.problems, version, written)
        is_whole = name.endswith(".json") or data.endswith(b"\n")
        return _Reading(contents, (), version, written, is_whole)

    def _must_wait(self, name: str, change: Change, reading: _Reading) -> bool:
        waiting = self._waiting.pop(name, None)
        if not self._is_doubtful(name, "written" if waiting else change, reading):
            return False
        now = time.monotonic()
        if waiting is None or waiting.stamp != reading.stamp:
            age = time.time() - reading.written if reading.written is not None else 0.0
            # A clock that jumped must not make the wait longer than the settle time.
            rest = min(self._settle, self._settle - age)
            waiting = _Waiting(change, reading.stamp, now + rest)
        if waiting.until <= now:
            return False
        self._waiting[name] = waiting
        return True

    def _is_doubtful(self, name: str, change: Change, reading: _Reading) -> bool:
        if reading.contents is None:
            return reading.problems != self._broken.get(name)
        before = self.index.file(name)
        if before is NOTHING or change == "replaced":
            return False
        return not reading.is_whole or _loses(before, reading.contents)

    def _explain(self, conflicts: tuple[Conflict, ...]) -> list[tuple[Conflict, ParseError]]:
        listed = conflicts[:_CONFLICTS_LISTED]
        explained = [(each, self._conflict_error(each)) for each in listed]
        more = len(conflicts) - _CONFLICTS_LISTED
        if more > 0:
            first = conflicts[_CONFLICTS_LISTED]
            reason = f"{more} more objects, from here on, are defined twice"
            explained.append((first, ParseError(first.loser, 0, reason)))
        return explained

    def _conflict_error(self, conflict: Conflict) -> ParseError:
        key, name = conflict.key, conflict.loser
        try:
            data, _ = load(self._directory, name)
            document = next(islice(split(name, data), conflict.number, None), None)
            line = documents.line_of(document, data) if document else 0
        except (Unusable, FileNotFoundError):
            line = 0
        what = (
            f"{key.kind} {key.namespace}/{key.name}" if key.namespace else f"{key.kind} {key.name}"
        )
        if conflict.winner == name:
            return ParseError(name, line, f"{what} is already defined above; the first counts")
        reason = f"{what} is already defined in {conflict.winner}, which counts"
        return ParseError(name, line, reason)


def _loses(before: Contents, after: Contents) -> bool:
    """True if an object that was in the file no longer is."""
    kept = set(map(id, after.objects()))
    lost = {one.key for one in before.objects() if id(one) not in kept}
    return bool(lost) and not lost <= {one.key for one in after.objects()}
