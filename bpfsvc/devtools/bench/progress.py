"""The present step of the benchmark and the time that is left, for the user.

The bar is drawn when a step begins and at no other time: a clock that draws while something is
measured would be measured too.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from typing import Self, TextIO

from rich.console import Console
from rich.progress import BarColumn, TextColumn
from rich.progress import Progress as Bar

from bpfsvc.devtools.bench.figures import duration_text

_LINE_EVERY = 10.0  # seconds, where there is no terminal
_KNOWN = 0.05  # part of the plan after which its own pace says more than the plan
_REDRAW = 0.1  # seconds


class Progress:
    """A bar on standard error, or a line now and then where that is no terminal.

    ``total_seconds``: the planned time of all steps. A context manager.
    """

    def __init__(
        self,
        total_seconds: float,
        *,
        stream: TextIO | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._total = max(total_seconds, 1e-9)
        self._console = Console(file=stream or sys.stderr, highlight=False, soft_wrap=True)
        self._clock, self._began = clock, clock()
        self._done = 0.0
        self._shown = float("-inf")
        self._bar = Bar(
            BarColumn(bar_width=30),
            TextColumn("{task.percentage:3.0f} %"),
            TextColumn("{task.fields[left]}", markup=False),
            TextColumn("{task.description}", markup=False),
            console=self._console,
            auto_refresh=False,
            transient=True,
            disable=not self._console.is_terminal,
            # Other output stays where it is printed to.
            redirect_stdout=False,
            redirect_stderr=False,
        )
        self._task = self._bar.add_task("", total=self._total, left="")

    def __enter__(self) -> Self:
        self._bar.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._bar.stop()

    def done(self, seconds: float) -> None:
        """Count a step that was planned to take so long as done."""
        self._done = min(self._total, self._done + seconds)

    def show(self, text: str) -> None:
        """Show the step that begins now."""
        now = self._clock()
        if now - self._shown < (_LINE_EVERY if self._bar.disable else _REDRAW):
            return
        self._shown = now
        left = f"about {duration_text(self.left())} left"
        if self._bar.disable:
            self.note(f"{self._done / self._total:4.0%}, {left}: {text}")
        done = self._done
        self._bar.update(self._task, completed=done, description=text, left=left, refresh=True)

    def note(self, text: str) -> None:
        """Show a line that stays."""
        start = "bench: " if self._bar.disable else ""
        self._console.print(f"{start}{text}", markup=False)

    def left(self) -> float:
        """Return the seconds that are left: the plan's, at the pace so far once that is known."""
        planned = self._total - self._done
        if self._done < _KNOWN * self._total:
            return planned
        return planned * (self._clock() - self._began) / self._done
