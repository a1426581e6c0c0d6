"""An interruption by the user (SIGINT), which must neither be lost nor take long.

Python raises ``KeyboardInterrupt`` wherever it is at that moment, and drops it in code that runs
after a fork; this program forks all the time. So the signal is remembered too, and checked between
steps. When the run has not ended in good order within moments, it exits: the supervisor of the
sandbox ends all remaining processes.
"""

from __future__ import annotations

import os
import signal
import sys
import warnings
from types import FrameType
from typing import Self

from bpfsvc.devtools.lab.patience import stretched

STATUS = 130
_PATIENCE = 2.0  # seconds
_SHOW_CURSOR = b"\33[?25h"


class Interruption:
    """A context manager, for the main thread; ``check`` raises if there was a SIGINT within."""

    def __init__(self) -> None:
        self._seen = False

    def __enter__(self) -> Self:
        handlers = {signal.SIGINT: self._see, signal.SIGALRM: self._give_up}
        self._before = {number: signal.signal(number, act) for number, act in handlers.items()}
        return self

    def __exit__(self, *_: object) -> None:
        signal.setitimer(signal.ITIMER_REAL, 0)
        for number, before in self._before.items():
            signal.signal(number, before)

    def check(self) -> None:
        """Raise ``KeyboardInterrupt`` if it should have been raised before."""
        if self._seen:
            raise KeyboardInterrupt

    def _see(self, _number: int, _frame: FrameType | None) -> None:
        self._seen = True
        # What is cut short now may fail in any way.
        warnings.simplefilter("ignore")
        sys.unraisablehook = lambda _: None
        signal.setitimer(signal.ITIMER_REAL, stretched(_PATIENCE))
        raise KeyboardInterrupt

    def _give_up(self, _number: int, _frame: FrameType | None) -> None:
        if os.isatty(2):
            os.write(2, _SHOW_CURSOR)
        os.write(2, b"\nError: interrupted\n")
        os._exit(STATUS)
