"""Pauses in long work, so that other threads get the interpreter."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from typing import TypeVar

_Item = TypeVar("_Item")

_ITEMS_PER_CHECK = 100

_WORK_SECONDS = 0.001
_PAUSE_SECONDS = 0.0001
"""Of work between two pauses, and of a pause: long enough for another thread to begin."""


class Pace:
    """Call it often; it sleeps when a pause is due."""

    def __init__(self) -> None:
        self._last_pause = time.perf_counter()

    def __call__(self) -> None:
        """Pause, if the last pause was more than a millisecond ago."""
        if time.perf_counter() - self._last_pause > _WORK_SECONDS:
            time.sleep(_PAUSE_SECONDS)
            self._last_pause = time.perf_counter()

    def over(self, items: Iterable[_Item]) -> Iterator[_Item]:
        """Yield many items of little work each, with pauses."""
        for number, item in enumerate(items):
            if not number % _ITEMS_PER_CHECK:
                self()
            yield item
