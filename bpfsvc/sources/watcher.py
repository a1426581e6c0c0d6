"""Events of the file system, as late as a write needs and no later.

watchfiles is used by its lower half: the watch exists when the constructor returns, so what is read
after that cannot miss a change, and each wait has its own patience. It looks for events every
``_STEP_MS`` and hands them over when one step brings no more, or after ``_GATHER_MS`` of a burst.

Directories are watched one by one, not as trees: which ones is known from the walk, links included,
and a directory that appears is found by its parent's event and leads to a new watch.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable

from watchfiles._rust_notify import RustNotify, WatchfilesRustInternalError

_STEP_MS = 2
_GATHER_MS = 50


class Events(dict[str, bool]):
    """Paths that changed; true for those that only came into place, which a rename does."""


class Watcher:
    """A watch on some directories; a context manager.

    Raises ``FileNotFoundError`` when one of them is no more. ``blindness`` says why there are no
    events, if there are none: most often the system has no watches left, and only looking helps.
    """

    def __init__(self, directories: Iterable[str]) -> None:
        self.blindness = ""
        self._notify: RustNotify | None = None
        try:
            self._notify = RustNotify(list(directories), False, False, 0, False, False)
        except FileNotFoundError:
            raise
        except (OSError, WatchfilesRustInternalError) as error:
            self.blindness = str(error)

    def wait(self, seconds: float, stop: threading.Event) -> Events:
        """Wait for events; none when time has passed or ``stop`` is set."""
        milliseconds = max(1, int(seconds * 1000))
        return self._wait(_GATHER_MS, _STEP_MS, milliseconds, stop)

    def wait_for_quiet(self, seconds: float, stop: threading.Event) -> None:
        """Wait until nothing has happened for some seconds, ten times as long at most."""
        milliseconds = int(seconds * 1000)
        self._wait(milliseconds * 10, milliseconds, milliseconds, stop)

    def _wait(self, gather: int, step: int, timeout: int, stop: threading.Event) -> Events:
        if self._notify is None:
            stop.wait(timeout / 1000)
            return Events()
        found = self._notify.watch(gather, step, timeout, stop)
        if found == "signal":
            raise KeyboardInterrupt
        events = Events()
        if isinstance(found, set):
            for change, path in found:
                events[path] = events.get(path, True) and change == _ADDED
        return events

    def __enter__(self) -> Watcher:
        return self

    def __exit__(self, *_: object) -> None:
        if self._notify is not None:
            self._notify.close()


_ADDED = 1
"""``watchfiles.Change.added``"""
