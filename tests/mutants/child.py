"""A process for each change: what it has done ends with it, and it cannot take for ever."""

from __future__ import annotations

import json
import os
import select
import signal
import time
from collections.abc import Callable
from itertools import zip_longest
from typing import Any

import pytest
from _pytest.runner import runtestprotocol

LONGEST = 150.0
"""Seconds that packet tests of a change may take; then a test waits for what does not come."""


def lab_limit(tests: int) -> float:
    """Return the seconds that so many lab tests of a change may take."""
    return 250.0 + 5.0 * tests


def in_child(work: Callable[[], dict[str, Any]], longest: float = LONGEST) -> dict[str, Any]:
    """Return what ``work`` returns in a process of its own, and the seconds that it took."""
    started = time.monotonic()
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(reader)
        nothing = os.open(os.devnull, os.O_RDWR)
        os.dup2(nothing, 1)
        os.dup2(nothing, 2)
        try:
            answer = work()
        except BaseException as error:
            answer = {"state": "broken", "by": repr(error)}
        os.write(writer, json.dumps(answer).encode())
        os._exit(0)
    os.close(writer)
    waiting = select.poll()  # select() takes no descriptor above 1023
    waiting.register(reader, select.POLLIN)
    ready = waiting.poll(1000 * longest)
    text = os.read(reader, 65536) if ready else b""
    if not ready:
        os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    os.close(reader)
    answer = json.loads(text) if text else {"state": "no end"}
    return {**answer, "seconds": round(time.monotonic() - started, 1)}


def run_until_failure(tests: list[pytest.Item], *, twice: bool = False) -> dict[str, Any]:
    """Run tests until one fails. ``twice``: until one fails two times."""
    for test, following in zip_longest(tests, tests[1:]):
        error = _error(test, following)
        if error and "refuses the program" in error:
            return {"state": "refused"}
        if error and twice:
            test.session._setupstate.teardown_exact(None)
            error = _error(test, None)
        if error:
            return {"state": "killed", "by": test.nodeid}
    return {"state": "survived"}


def _error(test: pytest.Item, following: pytest.Item | None) -> str:
    """Run a test; return how it failed, or nothing."""
    reports = runtestprotocol(test, log=False, nextitem=following)
    failed = [report.longreprtext for report in reports if report.failed]
    return (failed[0] or "?") if failed else ""
