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

_M_MMAP_THRESHOLD, _M_ARENA_MAX = -3, -8
"""Of ``mallopt`` in glibc's malloc.h."""

_LARGE = 128 * 1024
"""Bytes from which on a block is mapped by itself."""


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
    """Let all threads allocate from one heap, and give large blocks back when they are freed.

    By default every thread has a heap of its own, and after the first large block is freed, others
    of its size come from the heap, where they leave holes.
    To be called before the first thread starts. Without glibc it does nothing.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt:
        mallopt(_M_ARENA_MAX, 1)
        mallopt(_M_MMAP_THRESHOLD, _LARGE)


def settle() -> None:
    """After the start: give back what it needed, and leave what stays out of later collections."""
    gc.collect()
    gc.freeze()
    trim()


def trim() -> None:
    """Give back what large work has left unused. Without glibc it does nothing."""
    malloc_trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if malloc_trim:
        malloc_trim(0)
