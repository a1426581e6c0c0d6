"""A configuration file that changes while the agent runs.

The file is read every few seconds rather than watched. A mounted ConfigMap changes by a symbolic
link to a directory beside it, an editor renames, a script writes in place: these are events of
three directories, and some may not exist yet. One read of the content covers all. The file has a
few kilobytes, and a delay does not matter: a kubelet takes a minute to mount a new ConfigMap.

A change takes effect when it has been read twice, so that a half written file is never used.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from pathlib import Path

from bpfsvc.base.errors import BpfsvcError, UsageError
from bpfsvc.config import documents
from bpfsvc.config.loading import CommandLine, Documents, load
from bpfsvc.config.release import Release, empty_mode_text, mode_of_empty

SECONDS = 3.0
"""Between two reads."""

_log = logging.getLogger("bpfsvc")


class ConfigChanged(BpfsvcError):
    """The file has other settings now, and only a new agent can apply them."""


class ConfigWatch:
    """Reads a file in a thread of its own; ``on_change`` gets each new content once.

    ``digest``: of the content known so far (:func:`bpfsvc.config.documents.digest`).
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
        self._thread = threading.Thread(target=self._watch, name="config", daemon=True)

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def stop(self) -> None:
        """Stop the thread. May be called from ``on_change``."""
        self._stop.set()
        if self._thread.is_alive() and self._thread is not threading.current_thread():
            self._thread.join()

    def read_once(self) -> None:
        """Read the file once."""
        try:
            data = self._path.read_bytes()
        except OSError as error:
            if error.strerror != self._unreadable:
                self._unreadable = error.strerror or "unreadable"
                _log.warning(
                    "cannot read %s: %s; the settings read before stay in effect",
                    self._path,
                    self._unreadable,
                )
            return
        self._unreadable = ""
        before, self._seen = self._seen, documents.digest(data)
        if self._seen == before and self._seen != self._known:
            self._known = self._seen
            self._on_change(data)

    def _watch(self) -> None:
        while not self._stop.wait(self._seconds):
            self.read_once()


class Reload:
    """Checks new content: a valid file with other settings ends the agent.

    kube-proxy ends whatever is in the file, and then does not start with a broken one. Here the
    node goes on as it was until the file is fixed.
    """

    def __init__(self, given: CommandLine, before: Documents, end: Callable[[], None]) -> None:
        self._given = given
        self._path = before.file or Path()
        self._before = before.plain()
        self._release = before.release
        self._mode = before.kubeproxy.mode if before.mode_is_empty else ""
        self._end = end
        self._reason = ""

    def __call__(self, data: bytes) -> None:
        """Check new content of the file."""
        try:
            now = load(
                self._given,
                lambda path: documents.parse(data, path),
                lambda *_: self._release,
            )
        except UsageError as error:
            _log.error("%s; the settings read before stay in effect", error.message)
            return
        if now.plain() == self._before:
            _log.info("%s has changed, its settings have not", self._path)
            return
        self._end_because(f"{self._path} has changed")

    def use_release(self, release: Release | None) -> None:
        """End the agent if the mode of the file means another one to the API server's release."""
        if release and self._mode and mode_of_empty(release) != self._mode:
            self._end_because(f'mode "" is {empty_mode_text(release)}, and was {self._mode}')

    def _end_because(self, reason: str) -> None:
        self._reason = reason
        self._end()

    def check(self) -> None:
        """Raise :class:`ConfigChanged` if other settings have ended the agent."""
        if self._reason:
            raise ConfigChanged(
                f"{self._reason}, so this agent ended; what it programmed stays",
                "start it again; a supervisor does that by itself",
            )
