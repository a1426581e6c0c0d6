"""Work beside the main thing: a command of this package, in a process of its own.

It ends, with all that it has started, when the block ends, be it by an error or by ^C.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from contextlib import suppress
from types import TracebackType

from tests.cluster.errors import ClusterError
from tests.cluster.settings import CHECKOUT


class Aside:
    """``with Aside("images", ...) as work: ...; work.wait()``."""

    def __init__(self, *words: str) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.cluster", *words],
            cwd=CHECKOUT,
            stdin=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )

    def __enter__(self) -> Aside:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        with suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGTERM)
        with self._process:
            pass

    def wait(self) -> None:
        """Wait for the end; ``ClusterError`` with its last line if it failed."""
        _, said = self._process.communicate()
        if self._process.returncode != 0:
            last = said.strip().rpartition("\n")[2].removeprefix("error: ")
            raise ClusterError(last or f"it ended with {self._process.returncode}")
