"""What the agent believes of each file, and when it believes what it reads.

A file that is being written in place is cut short for a moment: malformed, empty, or well-formed
with the last objects missing. Believing that would report an error that mends itself, or worse,
tear down Services. So whatever would take something away (objects, or trust in the file) is looked
at again after the settle time, and only then counts. What brings something new counts at once, and
so does a good file that was renamed into place, since that is complete when it appears.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Literal, NamedTuple

from bpfsvc.model import ObjectKey
from bpfsvc.sources import Problem, files
from bpfsvc.sources.files import NOTHING, Contents, Stopped, Unusable
from bpfsvc.sources.holdings import Conflict, Difference, Holdings
from bpfsvc.sources.tree import Tree

Change = Literal["written", "replaced", "absent"]
"""How a file changed: in place or unknown, renamed into place, or no longer there to be read."""

_CONFLICTS_TOLD = 10


class _Waiting(NamedTuple):
    """A file that is looked at again at ``until``; what it was (``stamp``) when that began."""

    change: Change
    stamp: int
    until: float


class _Sight(NamedTuple):
    """What a file looks like at this moment. ``written`` is when, by the clock of the files."""

    contents: Contents | None
    problems: tuple[Problem, ...] = ()
    stamp: int = 0
    written: float | None = None
    is_whole: bool = True


class Shelf:
    """All files of a directory of manifests.

    ``settle`` is in seconds. Every method that reads raises ``Stopped`` soon after ``stop`` is set.
    """

    def __init__(self, directory: Path, settle: float, stop: threading.Event) -> None:
        self.holdings = Holdings()
        self.is_missing = False
        self._directory = directory
        self._settle = settle
        self._stop = stop
        self._stamps: dict[str, int] = {}
        self._broken: dict[str, tuple[Problem, ...]] = {}
        self._waiting: dict[str, _Waiting] = {}
        self._unreadable: tuple[Problem, ...] = ()
        self._explained: tuple[Conflict, ...] = ()
        self._conflicts: list[tuple[Conflict, Problem]] = []

    def compare(self, tree: Tree) -> Difference:
        """Take every file that differs from what a walk found."""
        self._unreadable = tree.problems
        stamps = self._stamps
        changes: dict[str, Change] = {
            name: "written"
            for name, stamp in tree.files.items()
            if stamps.get(name) != stamp or not stamp
        }
        under_unreadable = tuple(problem.file.removeprefix("./") for problem in tree.problems)
        for name in stamps:
            if name not in tree.files and not name.startswith(under_unreadable):
                changes[name] = "absent"
        return self.take(changes | self.due())

    def take(self, changes: Mapping[str, Change]) -> Difference:
        """Read some files again and say what that changes."""
        news: dict[str, Contents] = {}
        for name, change in changes.items():
            if self._stop.is_set():
                raise Stopped
            sight = self._look(name, change)
            if self._must_wait(name, change, sight):
                continue
            if sight.contents is not None:
                news[name] = sight.contents
                self._broken.pop(name, None)
            else:
                self._broken[name] = sight.problems
            if sight.contents is NOTHING and not sight.stamp:
                self._stamps.pop(name, None)
            else:
                self._stamps[name] = sight.stamp
        return self.holdings.apply(news)

    def due(self) -> dict[str, Change]:
        """Give the files whose settle time has passed."""
        now = time.monotonic()
        return {
            name: waiting.change for name, waiting in self._waiting.items() if waiting.until <= now
        }

    def patience(self, longest: float) -> float:
        """Say how long nothing is due, in seconds."""
        if not self._waiting:
            return longest
        first = min(waiting.until for waiting in self._waiting.values())
        return min(longest, max(0.0, first - time.monotonic()))

    @property
    def is_settled(self) -> bool:
        """Whether no file waits to be believed."""
        return not self._waiting

    def problems(self) -> tuple[Problem, ...]:
        """Give all that is wrong now, in the order of files."""
        if self.is_missing:
            reason = "the directory is missing; what it last held stays in force"
            return (Problem(str(self._directory), 0, reason),)
        found = list(self._unreadable)
        for problems in self._broken.values():
            found += problems
        if self.holdings.conflicts is not self._explained:
            self._explained = self.holdings.conflicts
            self._conflicts = self._explain(self._explained)
        # A rename in two steps looks like a conflict until the old name is known to be gone.
        found += (
            problem
            for conflict, problem in self._conflicts
            if conflict.winner not in self._waiting and conflict.loser not in self._waiting
        )
        return tuple(sorted(found))

    def _look(self, name: str, change: Change) -> _Sight:
        if change == "absent":
            return _Sight(NOTHING)
        try:
            data, status = files.load(self._directory, name)
        except FileNotFoundError:
            return _Sight(NOTHING)
        except Unusable as error:
            return _Sight(None, error.problems)
        stamp, written = files.stamp(status), status.st_mtime
        try:
            contents = files.parse(name, data, self.holdings.get(name), self._stop)
        except Unusable as error:
            return _Sight(None, error.problems, stamp, written)
        is_whole = name.endswith(".json") or data.endswith(b"\n")
        return _Sight(contents, (), stamp, written, is_whole)

    def _must_wait(self, name: str, change: Change, sight: _Sight) -> bool:
        waiting = self._waiting.get(name)
        if not self._is_doubtful(name, "written" if waiting else change, sight):
            self._waiting.pop(name, None)
            return False
        now = time.monotonic()
        if waiting is None or waiting.stamp != sight.stamp:
            age = time.time() - sight.written if sight.written is not None else 0.0
            # A clock that jumped must not make anybody wait longer than the settle time.
            rest = min(self._settle, self._settle - age)
            waiting = _Waiting(change, sight.stamp, now + rest)
        if waiting.until <= now:
            self._waiting.pop(name, None)
            return False
        self._waiting[name] = waiting
        return True

    def _is_doubtful(self, name: str, change: Change, sight: _Sight) -> bool:
        if sight.contents is None:
            return sight.problems != self._broken.get(name)
        before = self.holdings.get(name)
        if before is NOTHING or change == "replaced":
            return False
        return not sight.is_whole or _loses(before, sight.contents)

    def _explain(self, conflicts: tuple[Conflict, ...]) -> list[tuple[Conflict, Problem]]:
        explained = []
        for conflict in conflicts[:_CONFLICTS_TOLD]:
            try:
                data, _ = files.load(self._directory, conflict.loser)
                line = files.line_in(conflict.loser, data, conflict.number)
            except (Unusable, FileNotFoundError):
                line = 0
            problem = Problem(conflict.loser, line, _conflict_reason(conflict))
            explained.append((conflict, problem))
        more = len(conflicts) - _CONFLICTS_TOLD
        if more > 0:
            conflict = conflicts[_CONFLICTS_TOLD]
            reason = f"{more} more objects, from here on, are defined twice"
            explained.append((conflict, Problem(conflict.loser, 0, reason)))
        return explained


def _loses(before: Contents, after: Contents) -> bool:
    """Tell whether an object that stood in the file no longer does."""
    kept = set(map(id, after.objects()))
    lost = {one.key for one in before.objects() if id(one) not in kept}
    return bool(lost) and not lost <= {one.key for one in after.objects()}


def _conflict_reason(conflict: Conflict) -> str:
    name = _key_text(conflict.key)
    if conflict.winner == conflict.loser:
        return f"{name} is already defined above; the first counts"
    return f"{name} is already defined in {os.fspath(conflict.winner)}, which counts"


def _key_text(key: ObjectKey) -> str:
    return f"{key.kind} {key.namespace}/{key.name}" if key.namespace else f"{key.kind} {key.name}"
