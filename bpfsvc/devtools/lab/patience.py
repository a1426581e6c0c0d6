"""The time limits of the lab, in one place, because machines differ in speed.

``BPFSVC_LAB_PATIENCE=15`` makes every time limit of the lab, and of its users, that many times
longer; an emulated processor needs it. Only a test that waits in vain takes longer. A limit that a
test measures (a claim about speed) does not change.
"""

from __future__ import annotations

import os
import select
import time
from collections.abc import Callable
from typing import Protocol

from bpfsvc.base.errors import UsageError

VARIABLE = "BPFSVC_LAB_PATIENCE"

# Seconds between two checks: a part of the time since the first. A check takes processor time from
# what is waited for, and hundreds of checks made the start of an agent a third longer.
_SHORTEST_PAUSE, _LONGEST_PAUSE = 0.002, 0.05
_PART = 1 / 20


def stretched(seconds: float) -> float:
    """Return a time limit for this machine, in seconds; ``UsageError`` for a wrong setting."""
    text = os.environ.get(VARIABLE, "1")
    try:
        factor = float(text)
    except ValueError:
        factor = 0
    if not 0 < factor < 1000:
        raise UsageError(f"{VARIABLE} is {text!r}", "give a factor such as 15")
    return seconds * factor


def wait(
    condition: Callable[[], bool],
    about: str,
    timeout: float = 10.0,
    *,
    longest_pause: float = _LONGEST_PAUSE,
) -> None:
    """Wait until ``condition`` holds; ``TimeoutError`` naming ``about`` if it does not in time.

    ``longest_pause``: seconds between two checks, for a caller that measures the time.
    """
    seconds = stretched(timeout)
    began = time.monotonic()
    while not condition():
        waited = time.monotonic() - began
        if waited > seconds:
            raise TimeoutError(f"{about}: not within {seconds:g} s")
        time.sleep(min(max(_SHORTEST_PAUSE, waited * _PART), longest_pause))


class _File(Protocol):
    def fileno(self) -> int: ...


def readable(file: _File, seconds: float) -> bool:
    """Wait until something can be read from ``file``; False if there is nothing in time.

    (By poll(): select() fails in processes with more than a thousand open files.)
    """
    arrivals = select.poll()
    arrivals.register(file, select.POLLIN)
    return bool(arrivals.poll(max(seconds, 0) * 1000))
