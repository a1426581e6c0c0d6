"""Processes that outlive the command that started them, each with a record and a log.

A record holds the process' number and when it started, so that a later command never ends another
process that got the same number since.
"""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Mapping, Sequence
from contextlib import nullcontext, suppress
from pathlib import Path

from bpfsvc.devtools.lab.netns import NetworkNamespace
from bpfsvc.devtools.lab.patience import wait

_APPEND = os.O_WRONLY | os.O_CREAT | os.O_APPEND
_START_TIME, _STATE = 19, 0  # fields of /proc/PID/stat after the name: 22 and 3 of proc(5)

Words = Sequence[str | os.PathLike[str]]


class Processes:
    """The background processes of one cluster; records and logs are in ``folder``."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def log(self, name: str) -> Path:
        """Return the file with the output of a process."""
        return self.folder / f"{name}.log"

    def start(
        self,
        name: str,
        command: Words,
        *,
        namespace: NetworkNamespace | None = None,
        environment: Mapping[str, str] | None = None,
    ) -> int:
        """Start a process in a session of its own and return its number."""
        self.folder.mkdir(parents=True, exist_ok=True)
        words = [os.fspath(word) for word in command]
        log = str(self.log(name))
        with nullcontext() if namespace is None else namespace.entered():
            process = os.posix_spawnp(
                words[0],
                words,
                os.environ if environment is None else environment,
                file_actions=[
                    (os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0),
                    (os.POSIX_SPAWN_OPEN, 1, log, _APPEND, 0o644),
                    (os.POSIX_SPAWN_DUP2, 1, 2),
                ],
                setsid=True,
            )
        self.record(name, process)
        return process

    def record(self, name: str, process: int) -> None:
        """Remember a running process under a name."""
        self._file(name).write_text(json.dumps([process, _started(process)]))

    def number(self, name: str) -> int | None:
        """Return the number of a process, or None if it does not run."""
        try:
            process, started = json.loads(self._file(name).read_text())
        except (FileNotFoundError, ValueError):
            return None
        with suppress(ChildProcessError):
            os.waitpid(process, os.WNOHANG)
        # One that ended before it was recorded has no time of its start.
        return process if started is not None and started == _started(process) else None

    def stop(self, name: str, *, kill: bool = False, timeout: float = 10) -> None:
        """End a process, if it runs, and wait; it is killed if it takes longer than ``timeout``."""
        self._send(name, signal.SIGKILL if kill else signal.SIGTERM)
        try:
            wait(lambda: self.number(name) is None, f"the end of {name}", timeout)
        except TimeoutError:
            self._send(name, signal.SIGKILL)
            wait(lambda: self.number(name) is None, f"the end of {name}", timeout)
        self._file(name).unlink(missing_ok=True)

    def _send(self, name: str, number: signal.Signals) -> None:
        process = self.number(name)
        if process is not None:
            with suppress(ProcessLookupError):
                os.kill(process, number)

    def names(self) -> list[str]:
        """Return the names of all recorded processes."""
        return sorted(file.stem for file in self.folder.glob("*.pid"))

    def _file(self, name: str) -> Path:
        return self.folder / f"{name}.pid"


def _started(process: int) -> int | None:
    """Return when a process started, in clock ticks after boot; None if it has ended."""
    try:
        stat = Path(f"/proc/{process}/stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return None
    fields = stat.rpartition(")")[2].split()
    return None if fields[_STATE] in "ZX" else int(fields[_START_TIME])
