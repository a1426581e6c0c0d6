"""Steps that must not take longer than until the next whole second: some entries count those."""

from __future__ import annotations

import time
from collections.abc import Callable


def within_a_second(steps: Callable[[], None]) -> None:
    """Take steps until they are right; they may be wrong only if a second has ended meanwhile.

    They set the time of the entries, so they may be taken again.
    """
    while True:
        second = int(time.monotonic())
        try:
            return steps()
        except AssertionError:
            if int(time.monotonic()) == second:
                raise
