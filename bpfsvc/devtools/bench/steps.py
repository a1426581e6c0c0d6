"""What a run is made of: steps, each with the time it will take, known before the first begins."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Protocol

from bpfsvc.base.errors import BpfsvcError, SystemUnfit
from bpfsvc.devtools.bench.baselines import TooSlow
from bpfsvc.devtools.bench.figures import Scale, duration_text, services_text
from bpfsvc.devtools.bench.results import Results

Report = Callable[[str], None]
"""Shows the user what is being done."""

LEFT_OUT = "left out, for the run may not take longer than"
"""How the note begins that names the steps for which there was no time."""

_ERRORS = (BpfsvcError, OSError, subprocess.SubprocessError)


@dataclass(frozen=True, slots=True)
class Step:
    """A part of a run.

    ``about``: in words, for the user. ``seconds``: about how long it takes. ``act`` may report
    details. ``always``: it is done however late it is.
    """

    about: str
    seconds: float
    act: Callable[[Report], None]
    always: bool = False


class SlowModes:
    """Modes that took too long with some size of cluster: larger ones are not tried."""

    def __init__(self) -> None:
        self.smallest: dict[str, int] = {}
        """By mode, the smallest cluster that took it too long."""

    @contextmanager
    def watch(self, mode: str, services: int) -> Iterator[None]:
        """Set a mode up within. Raises BpfsvcError if it was too slow with as few Services."""
        known = self.smallest.get(mode, services + 1)
        if services >= known:
            raise BpfsvcError(f"not tried: {services_text(known)} took too long already")
        try:
            yield
        except TooSlow:
            self.smallest[mode] = services
            raise


@dataclass(frozen=True, slots=True)
class Context:
    """What all suites of a run need: ``modes`` are those that can run here."""

    scale: Scale
    modes: Sequence[str]
    results: Results
    slow: SlowModes = field(default_factory=SlowModes)


class Watcher(Protocol):
    """Shows how far a run is."""

    def step(self, text: str, seconds: float) -> None:
        """Show what begins now and is planned to take so long; what went before is done."""
        ...

    def note(self, text: str) -> None:
        """Show a line that stays."""
        ...


class Interruptible(Protocol):
    """Remembers an interruption that Python dropped."""

    def check(self) -> None:
        """Raise ``KeyboardInterrupt`` if there was one."""
        ...


def total(steps: Iterable[Step]) -> float:
    """Return the seconds that all take together."""
    return sum(step.seconds for step in steps)


def take(
    steps: Iterable[Step],
    results: Results,
    watcher: Watcher,
    interruption: Interruptible,
    limit: float = 0.0,
) -> None:
    """Take all steps; one that fails, or that would end too late, becomes a note.

    ``limit``: seconds after which none may end, as far as is known; 0 for none. ``SystemUnfit`` is
    raised, because a missing tool would be missing for all steps.
    """
    began = time.monotonic()
    late: list[str] = []
    for step in steps:
        over = time.monotonic() - began + step.seconds > limit
        if limit and over and not step.always:
            late.append(step.about)
            continue
        # Its seconds count as done when the next begins, whatever it reports before.
        watcher.step(step.about, 0.0)
        interruption.check()
        try:
            step.act(partial(_show, watcher, step.about))
        except SystemUnfit:
            raise
        except _ERRORS as error:
            interruption.check()
            results.notes.append(f"{step.about}: {_explained(error)}")
            watcher.note(results.notes[-1])
        watcher.step(step.about, step.seconds)
    if late:
        results.notes.append(f"{LEFT_OUT} {duration_text(limit)}: {'; '.join(late)}")
        watcher.note(results.notes[-1])


def _explained(error: BaseException) -> str:
    """Return what failed, beginning with the first error.

    After a failure, taking down what was half built may fail too; Python then raises the second
    error, which explains nothing.
    """
    texts = [str(error)]
    while (before := error.__context__) and not error.__suppress_context__:
        error = before
        if isinstance(error, _ERRORS):
            texts.insert(0, str(error))
    return "; and then: ".join(texts)


def _show(watcher: Watcher, about: str, line: str) -> None:
    watcher.step(f"{about}: {line}", 0.0)
