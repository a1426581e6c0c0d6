"""Events of the file system, a few milliseconds after the writes that cause them.

The class below ``watchfiles.watch`` is used: the watch exists when the constructor returns, so what
is read after that cannot miss a change, and each wait has its own timeout. It looks for events
every ``_STEP_MS``, and returns them after a step without one or after ``_GATHER_MS`` of a burst.

Directories are watched one by one, not as trees: the walk finds them, links included, and a new
directory causes an event of its parent, which leads to a new watch.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable

from watchfiles._rust_notify import RustNotify, WatchfilesRustInternalError

_STEP_MS = 2
_GATHER_MS = 50


class Watcher:
    """A watch on some directories; a context manager.

    Raises ``FileNotFoundError`` if one of them does not exist. ``blindness`` is the reason if there
    are no events, most often that the system has no watches left; then only walks find changes.
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

    def wait(self, seconds: float, stop: threading.Event) -> set[str]:
        """Return the paths of events; none after ``seconds`` or when ``stop`` is set."""
        milliseconds = max(1, int(seconds * 1000))
        return self._wait(_GATHER_MS, _STEP_MS, milliseconds, stop)

    def wait_for_quiet(self, seconds: float, stop: threading.Event) -> None:
        """Wait until nothing has happened for some seconds, ten times as long at most."""
        milliseconds = int(seconds * 1000)
        self._wait(milliseconds * 10, milliseconds, milliseconds, stop)

    def _wait(self, gather: int, step: int, timeout: int, stop: threading.Event) -> set[str]:
        if self._notify is None:
            stop.wait(timeout / 1000)
            return set()
        events = self._notify.watch(gather, step, timeout, stop)
        if events == "signal":
            raise KeyboardInterrupt
        return {path for _, path in events} if isinstance(events, set) else set()

    def __enter__(self) -> Watcher:
        return self

    def __exit__(self, *_: object) -> None:
        if self._notify is not None:
            self._notify.close()
