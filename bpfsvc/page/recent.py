"""What is read for one request serves the next ones, too: many browsers cost as much as one."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Generic, NamedTuple, TypeVar

_T = TypeVar("_T")

_LEAST_SECONDS = 2.0

_SHARE = 5.0
"""A value is kept so many times longer than it took to read: a sixth of a processor at most."""


class Dated(NamedTuple, Generic[_T]):
    """A value, and when it was read, in Unix seconds."""

    value: _T
    at: float


class Recent(Generic[_T]):
    """Holds the value that was read last; any thread may ask for it."""

    def __init__(self, read: Callable[[], _T], clock: Callable[[], float] = time.monotonic) -> None:
        """``read()`` is called by one thread at a time. ``clock()``: seconds."""
        self._read = read
        self._clock = clock
        self._lock = threading.Lock()
        self._known: Dated[_T] | None = None
        self._expires_at = 0.0

    def get(self) -> Dated[_T]:
        """Return a value that is at most some seconds old; raise what reading raises."""
        with self._lock:
            if self._known is not None and self._clock() < self._expires_at:
                return self._known
            self._known = None  # its memory serves the next value
            began = self._clock()
            value = self._read()
            ended = self._clock()
            self._expires_at = ended + max(_LEAST_SECONDS, _SHARE * (ended - began))
            self._known = Dated(value, time.time())
            return self._known
