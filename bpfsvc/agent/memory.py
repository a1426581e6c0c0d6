"""The memory of the agent, which must be small: it runs on every node, beside the workloads.

What is loaded once is held forever, and ten thousand Services leave holes that the allocator keeps.
The code that causes this does not show it, so this module deals with both.
"""

from __future__ import annotations

import ctypes
import gc
from pathlib import Path

OOM_SCORE = Path("/proc/self/oom_score_adj")

_M_MMAP_THRESHOLD, _M_ARENA_MAX = -3, -8
"""Of ``mallopt`` in glibc's malloc.h."""

_LARGE = 128 * 1024
"""Blocks of so many bytes or more are mapped by themselves."""

_USUAL = gc.get_threshold()

_MANY = 50_000
"""New objects before garbage is collected again. While an API server does not answer, each attempt
makes a few objects, which must not stay forever."""


def use_one_heap() -> None:
    """Make all threads allocate from one heap, and give large blocks back when they are freed.

    By default each thread has its own heap, and after the first large block is freed, blocks of its
    size come from the heap, where they leave holes.
    To be called before the first thread starts. Without glibc it does nothing.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt:
        mallopt(_M_ARENA_MAX, 1)
        mallopt(_M_MMAP_THRESHOLD, _LARGE)


def collect_rarely() -> None:
    """Collect garbage rarely, until :func:`release_startup_memory`.

    Objects of a start stay: to look through them again and again takes a tenth of the start.
    """
    gc.freeze()
    gc.set_threshold(_MANY)


def release_startup_memory() -> None:
    """Free what only the start needed; exempt all other objects from garbage collection."""
    gc.set_threshold(*_USUAL)
    gc.collect()
    gc.freeze()
    # Old garbage waits until it is a quarter of what the last collection kept: now of nothing.
    gc.collect()
    trim_heap()


def trim_heap() -> None:
    """Return unused heap to the system, after large work. Without glibc it does nothing."""
    malloc_trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if malloc_trim:
        malloc_trim(0)


def set_oom_score(score: int | None, path: Path = OOM_SCORE) -> str:
    """Set how likely the kernel kills the agent when memory runs out; return why it failed, or "".

    ``score``: -1000 (never) to 1000 (first). Best effort, as in kube-proxy: a lower score than now
    takes CAP_SYS_RESOURCE, and the agent works without.
    """
    if score is None:
        return ""
    try:
        if int(path.read_text()) != score:
            path.write_text(f"{score}\n")
    except OSError as error:
        return f"oomScoreAdj stays as it was: {error.strerror}"
    return ""
