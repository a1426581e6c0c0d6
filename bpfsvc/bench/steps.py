"""What a run is made of: steps, each with the time it will take, known before the first begins."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial
from typing import Protocol

from bpfsvc.bench.figures import Say
from bpfsvc.bench.results import Results
from bpfsvc.bench.words import duration
from bpfsvc.errors import BpfsvcError, SystemUnfit


@dataclass(frozen=True, slots=True)
class Step:
    """A part of a run.

    ``about``: in words, for who waits. ``seconds``: about how long it takes. ``act`` may tell
    more. ``always``: it is done however late it is.
    """

    about: str
    seconds: float
    act: Callable[[Say], None]
    always: bool = False


LEFT_OUT = "left out, for the run may not take longer than"
"""How the note begins that names the steps which came too late."""

_ERRORS = (BpfsvcError, OSError, subprocess.SubprocessError)


class Watcher(Protocol):
    """Shows how far a run is."""

    def step(self, text: str, seconds: float) -> None:
        """Tell what begins now and is planned to take so long; what went before is done."""
        ...

    def note(self, text: str) -> None:
        """Tell something that stays."""
        ...


class Interruptible(Protocol):
    """Knows of an interruption that got lost."""

    def check(self) -> None:
        """Raise ``KeyboardInterrupt`` if there was one."""
        ...


def total(steps: Iterable[Step]) -> float:
    """Give the seconds that all take together."""
    return sum(step.seconds for step in steps)


def take(
    steps: Iterable[Step],
    results: Results,
    watcher: Watcher,
    interruption: Interruptible,
    limit: float = 0.0,
) -> None:
    """Take all steps; what fails or comes too late becomes a note.

    ``limit``: seconds after which none may end, as far as is known; 0 for none. ``SystemUnfit`` is
    raised: a tool that is missing will not come.
    """
    began = time.monotonic()
    late: list[str] = []
    for step in steps:
        over = time.monotonic() - began + step.seconds > limit
        if limit and over and not step.always:
            late.append(step.about)
            continue
        # Its seconds count as done when the next begins, whatever it tells before.
        watcher.step(step.about, 0.0)
        interruption.check()
        try:
            step.act(partial(_tell, watcher, step.about))
        except SystemUnfit:
            raise
        except _ERRORS as error:
            interruption.check()
            results.notes.append(f"{step.about}: {_explained(error)}")
            watcher.note(results.notes[-1])
        watcher.step(step.about, step.seconds)
    if late:
        results.notes.append(f"{LEFT_OUT} {duration(limit)}: {'; '.join(late)}")
        watcher.note(results.notes[-1])


def _explained(error: BaseException) -> str:
    """Say what failed, and first of all what failed before.

    Where something has failed, taking down what was half built may fail too; Python then raises the
    second error, which explains nothing.
    """
    texts = [str(error)]
    while (before := error.__context__) and not error.__suppress_context__:
        error = before
        if isinstance(error, _ERRORS):
            texts.insert(0, str(error))
    return "; and then: ".join(texts)


def _tell(watcher: Watcher, about: str, line: str) -> None:
    watcher.step(f"{about}: {line}", 0.0)
