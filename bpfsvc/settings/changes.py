"""A file of settings that changes while the agent runs.

It is looked at every few seconds rather than watched. What is mounted from a ConfigMap changes by a
symbolic link to a directory beside it, an editor renames, a script writes in place: events of three
places, some of which only exist later, where one look at the content answers for all. The file is a
few kilobytes, and nobody waits for it: a kubelet alone takes a minute to bring a new ConfigMap.

A change takes effect when it has been seen twice, so that nothing is judged half written.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from pathlib import Path

from bpfsvc.errors import BpfsvcError, UsageError
from bpfsvc.settings import effective, reading
from bpfsvc.settings.loading import Given, Settings, load

SECONDS = 3.0
"""Between two looks."""

_log = logging.getLogger("bpfsvc")


class ConfigChanged(BpfsvcError):
    """The file says something else now, and only a new agent can do it."""


class ConfigWatch:
    """Looks at a file in a thread of its own; ``on_change`` gets each new content once.

    ``digest`` is that of the content known so far (:func:`bpfsvc.settings.reading.digest`).
    """

    def __init__(
        self,
        path: Path,
        digest: str,
        on_change: Callable[[bytes], None],
        seconds: float = SECONDS,
    ) -> None:
        self._path = path
        self._known = digest
        self._seen = digest
        self._on_change = on_change
        self._seconds = seconds
        self._unreadable = ""
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="settings", daemon=True)

    def start(self) -> None:
        """Begin."""
        self._thread.start()

    def stop(self) -> None:
        """End; may be called from ``on_change``."""
        self._stop.set()
        if self._thread.is_alive() and self._thread is not threading.current_thread():
            self._thread.join()

    def look(self) -> None:
        """Look once."""
        try:
            data = self._path.read_bytes()
        except OSError as error:
            if error.strerror != self._unreadable:
                self._unreadable = error.strerror or "unreadable"
                _log.warning(
                    "cannot read %s: %s; what it said before holds", self._path, self._unreadable
                )
            return
        self._unreadable = ""
        before, self._seen = self._seen, reading.digest(data)
        if self._seen == before and self._seen != self._known:
            self._known = self._seen
            self._on_change(data)

    def _watch(self) -> None:
        while not self._stop.wait(self._seconds):
            self.look()


class Reload:
    """Judges a new content: one that is good and says something else ends the agent.

    kube-proxy ends whatever is in the file, and then does not start again with one that is broken.
    Here the node goes on as it was until the file is mended.
    """

    def __init__(self, given: Given, settings: Settings, end: Callable[[], None]) -> None:
        self._given = given
        self._path = settings.file or Path()
        self._before = effective.document(settings)
        self._end = end
        self._changed = False

    def __call__(self, data: bytes) -> None:
        """Take a new content of the file."""
        try:
            now = load(self._given, lambda path: reading.parse(data, path))
        except UsageError as error:
            _log.error("%s; what the file said before holds", error.message)
            return
        if effective.document(now) == self._before:
            _log.info("%s has changed, and says the same", self._path)
            return
        self._changed = True
        self._end()

    def check(self) -> None:
        """Raise :class:`ConfigChanged` if the agent was ended by a new content."""
        if self._changed:
            raise ConfigChanged(
                f"{self._path} has changed, so this agent ended; what it programmed stays",
                "start it again; a supervisor does so by itself",
            )
