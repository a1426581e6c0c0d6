"""Errors for suites and modes without any figures: a run that measured nothing has failed.

If only a part of a run fails, that is a note. It is an error when

* there is no figure at all;
* a suite has none, although it was named, or although it failed (a suite that the time limit has
  left out, or that the modes do not need, has not failed);
* a mode has none that was named. If all modes are wanted, the machine decides which modes can run.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from bpfsvc.base.errors import BpfsvcError
from bpfsvc.devtools.bench.modes import DIRECT, MODES
from bpfsvc.devtools.bench.results import Results

LEFT_OUT = "left out, for the run may not take longer than"
"""How the note begins that names the steps for which there was no time."""


class NotMeasured(BpfsvcError):
    """A run has no figures of something that was asked for."""


def check(results: Results, *, suites: Sequence[str] = (), modes: Sequence[str] = ()) -> None:
    """Raise NotMeasured, with the first note that explains it.

    ``suites`` and ``modes``: named by the user. Naming all modes names none, and ``direct`` is
    measured for comparison with other modes.
    """
    wanted = [*results.scale["suites"]]
    # Other suites give figures of starts, too; only the suite start itself has an origin.
    cells = {
        suite: [cell for cell in results.find(suite=suite) if cell.where or suite != "start"]
        for suite in wanted
    }
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
    what = f"no figures of {', '.join(missing)}" if measured else "nothing was measured"
    reasons = missing.values() if measured else [_why(results, suite) for suite in wanted]
    if missing or not measured:
        why = next(filter(None, reasons), "no suite of this run could measure it")
        raise NotMeasured(f"{what}: {why}", "look for more in the notes of the report")


def _why(results: Results, name: str) -> str:
    """Return the first note that names a suite or a mode; for traffic also a note about direct."""
    names = (name, DIRECT) if name in ("pods", "edge") else (name,)
    word = re.compile(rf"(?<![\w-])({'|'.join(map(re.escape, names))})(?![\w-])")
    return next((note for note in results.notes if word.search(note)), "")
