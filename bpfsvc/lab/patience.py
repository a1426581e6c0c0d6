"""How long the lab waits for anything: said in one place, for machines are slow in many ways.

``BPFSVC_LAB_PATIENCE=15`` makes every time-out of the lab, and of what is built on it, that many
times longer; an emulated processor needs it. Nobody waits longer for what comes, only for what
does not. A limit that a test measures (a claim about speed) is no time-out and does not stretch.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable

from bpfsvc.errors import UsageError

VARIABLE = "BPFSVC_LAB_PATIENCE"

_PAUSE = 0.002  # seconds between two looks


def stretched(seconds: float) -> float:
    """Give a time-out in seconds as this machine needs it; ``UsageError`` for a wrong setting."""
    text = os.environ.get(VARIABLE, "1")
    try:
        factor = float(text)
    except ValueError:
        factor = 0
    if not 0 < factor < 1000:
        raise UsageError(f"{VARIABLE} is {text!r}", "give a factor such as 15")
    return seconds * factor


def wait(condition: Callable[[], bool], about: str, timeout: float = 10.0) -> None:
    """Wait until ``condition`` holds; ``TimeoutError`` naming ``about`` if it does not in time."""
    seconds = stretched(timeout)
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            raise TimeoutError(f"{about}: not within {seconds:g} s")
        time.sleep(_PAUSE)
