"""What was asked for and has no figures at all: a run that measured nothing has failed.

A part of a run may fail, and others still tell something: that is a note. It is an error when

* there is no figure at all;
* a suite has none, although it was named; or it was not, but failed (what the time limit has left
  out, or what the modes have no use for, has not failed);
* a mode has none that was named. Which of all modes a machine can run is for it to say.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

from bpfsvc.bench.clusters.modes import DIRECT
from bpfsvc.bench.results import MODES, Cell, Results
from bpfsvc.bench.steps import LEFT_OUT
from bpfsvc.bench.suites.traffic import SUITES as COMPARED
from bpfsvc.errors import BpfsvcError


class NotMeasured(BpfsvcError):
    """A run has no figures of something that was asked for."""


def check(results: Results, *, suites: Sequence[str] = (), modes: Sequence[str] = ()) -> None:
    """Raise NotMeasured, with the first note that explains it.

    ``suites`` and ``modes``: those that were named. Naming all modes names none, and ``direct`` is
    measured for the sake of others.
    """
    wanted = [*results.scale["suites"]]
    cells = {suite: _own(results, suite) for suite in wanted}
    if not any(cells.values()):
        raise _not_measured("nothing was measured", [_why(results, suite) for suite in wanted])
    missing = {}
    for suite in wanted:
        why = _why(results, suite)
        failed = why and not why.startswith(LEFT_OUT)
        if not cells[suite] and (suite in suites or failed):
            missing[f"the suite {suite}"] = why
    measured = {cell.mode for suite in wanted for cell in cells[suite]}
    for mode in modes if len(modes) < len(MODES) else ():
        if mode not in measured and mode != DIRECT:
            missing[f"the mode {mode}"] = _why(results, mode)
    if missing:
        raise _not_measured(f"no figures of {', '.join(missing)}", missing.values())


def _own(results: Results, suite: str) -> list[Cell]:
    """Give what a suite itself has measured; of starts, stands of other suites tell too."""
    return [
        cell
        for cell in results.find(suite=suite)
        if cell.values and (cell.where or suite != "start")
    ]


def _why(results: Results, name: str) -> str:
    """Give the first note that names a suite or a mode, or what the suite needs."""
    names = (name, DIRECT) if name in COMPARED else (name,)
    word = re.compile(rf"(?<![\w-])({'|'.join(map(re.escape, names))})(?![\w-])")
    return next((note for note in results.notes if word.search(note)), "")


def _not_measured(what: str, reasons: Iterable[str]) -> NotMeasured:
    why = next(filter(None, reasons), "no suite of this run could measure it")
    return NotMeasured(f"{what}: {why}", "look for more in the notes of the report")
