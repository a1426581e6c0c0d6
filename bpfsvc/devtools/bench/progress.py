"""What the benchmark does now and how long it still takes, for the user.

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

    ``total_seconds``: what all steps are planned to take. A context manager.
    """

    def __init__(
        self,
        total_seconds: float,
        *,
        stream: TextIO | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._total = total_seconds
        self._stream = stream or sys.stderr
        self._clock = clock
        self._began = clock()
        self._done = 0.0
        self._current = 0.0
        self._shown = float("-inf")
        self._bar = _bar(self._stream) if self._stream.isatty() else None
        if self._bar:
            self._task = self._bar.add_task("", total=max(total_seconds, 1e-9), left="")

    def __enter__(self) -> Self:
        if self._bar:
            self._bar.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._bar:
            self._bar.stop()

    def step(self, text: str, seconds: float = 0.0) -> None:
        """Show what begins now and how long it is planned to take; what went before is done."""
        self._done += self._current
        self._current = seconds
        now = self._clock()
        if now - self._shown < (_REDRAW if self._bar else _LINE_EVERY):
            return
        self._shown = now
        left = f"about {duration_text(self.left())} left"
        if self._bar:
            done = min(self._done, self._total)
            self._bar.update(self._task, completed=done, description=text, left=left, refresh=True)
        else:
            percent = 100 * min(1.0, self._done / self._total) if self._total else 0
            self._line(f"{percent:3.0f} %, {left}: {text}")

    def note(self, text: str) -> None:
        """Show a line that stays."""
        if self._bar:
            self._bar.console.print(text, markup=False, highlight=False)
        else:
            self._line(text)

    def left(self) -> float:
        """Return the seconds that are left: the plan's, at the pace so far once that is known."""
        planned = max(0.0, self._total - self._done)
        if not self._total or self._done < _KNOWN * self._total:
            return planned
        return planned * (self._clock() - self._began) / self._done

    def _line(self, text: str) -> None:
        self._stream.write(f"bench: {text}\n")
        self._stream.flush()


def _bar(stream: TextIO) -> Bar:
    return Bar(
        BarColumn(bar_width=30),
        TextColumn("{task.percentage:3.0f} %"),
        TextColumn("{task.fields[left]}", markup=False),
        TextColumn("{task.description}", markup=False),
        console=Console(file=stream),
        auto_refresh=False,
        transient=True,
        # Other output stays where it is printed to.
        redirect_stdout=False,
        redirect_stderr=False,
    )
