"""Agents that are killed at a line of their code: at each line in turn, if a test wants that.

A copy of the package gets a trace function. The lines that it counts are those of chosen functions,
in the order in which the agent comes to them.
"""

from __future__ import annotations

import os
from collections.abc import Collection
from pathlib import Path

CRASH_AT = "CRASH_AT"
"""Variable of the environment: the agent kills itself before this line, counted from 1."""

_COUNTED = "counted-lines"

_TRACE = """
import os, signal, sys, threading

def _begin():
    crash_at, seen, functions = int(os.environ.get({variable!r}, 0)), 0, {functions!r}
    out = open({out!r}, "w", buffering=1)

    def call(frame, event, argument):
        code = frame.f_code
        return line if (os.path.basename(code.co_filename), code.co_name) in functions else None

    def line(frame, event, argument):
        nonlocal seen
        if event == "line":
            seen += 1
            print(seen, os.path.basename(frame.f_code.co_filename), frame.f_lineno, file=out)
            if seen == crash_at:
                os.kill(os.getpid(), signal.SIGKILL)
        return line

    threading.settrace(call)
    sys.settrace(call)

_begin()
"""


def make_crashing(directory: Path, functions: Collection[tuple[str, str]]) -> None:
    """Have the agents of a copied package count lines, and crash where :func:`crash_at` says.

    ``directory`` holds the copy; ``functions``: the name of a file, and that of a function in it.
    """
    main = directory / "bpfsvc" / "__main__.py"
    out = str(directory / _COUNTED)
    begin = _TRACE.format(variable=CRASH_AT, functions=set(functions), out=out)
    main.write_text(begin + main.read_text())


def counted_lines(directory: Path) -> list[str]:
    """Return the lines that the last agent of a copy came to: number, file, line."""
    return (directory / _COUNTED).read_text().splitlines()


def crash_at(line: int) -> dict[str, str]:
    """Return the environment of an agent that crashes before a line."""
    return {**os.environ, CRASH_AT: str(line)}
