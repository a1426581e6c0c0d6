"""Keeping the agent small: it runs on every node, beside everybody's workload.

What is loaded once is held forever, and what ten thousand Services pass through leaves holes that
the allocator keeps. Neither is visible in the code that causes it, so both are dealt with here.
"""

from __future__ import annotations

import ctypes
import gc
import sys
from collections.abc import Iterator
from contextlib import contextmanager

_M_ARENA_MAX = -8
"""Of ``mallopt`` in glibc's malloc.h."""


@contextmanager
def without(module: str) -> Iterator[None]:
    """Let the imports inside believe that an optional module is not installed."""
    if module in sys.modules:
        yield
        return
    sys.modules[module] = None  # type: ignore[assignment]
    try:
        yield
    finally:
        del sys.modules[module]


def share_one_heap() -> None:
    """Let all threads allocate from one heap, instead of each from one of its own.

    To be called before the first thread starts. Without glibc it does nothing.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt:
        mallopt(_M_ARENA_MAX, 1)


def settle() -> None:
    """After the start: give back what it needed, and leave what stays out of later collections."""
    gc.collect()
    gc.freeze()
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim:
        trim(0)
