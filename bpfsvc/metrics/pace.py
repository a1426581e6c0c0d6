"""Pauses in long work, so that who waits for the interpreter gets it."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from typing import TypeVar

_Item = TypeVar("_Item")

_AT_ONCE = 100
"""Items between two looks at the clock."""

_WORK = 0.001
_PAUSE = 0.0001
"""Seconds of work between two pauses, and of a pause: long enough for another thread to begin."""


class Pace:
    """Call it often; it sleeps when it is time to."""

    def __init__(self) -> None:
        self._since = time.perf_counter()

    def __call__(self) -> None:
        """Let others get on, if the last time is some while ago."""
        if time.perf_counter() - self._since > _WORK:
            time.sleep(_PAUSE)
            self._since = time.perf_counter()

    def through(self, items: Iterable[_Item]) -> Iterator[_Item]:
        """Go over many items, each of which is little work."""
        for number, item in enumerate(items):
            if not number % _AT_ONCE:
                self()
            yield item
