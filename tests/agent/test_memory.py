"""Garbage is looked for rarely while an agent starts, and is not kept forever even then."""

from __future__ import annotations

import gc
import weakref
from collections import deque
from collections.abc import Iterator

import pytest

from bpfsvc.agent import memory


class Cycle:
    """Garbage that only the collector frees."""

    def __init__(self) -> None:
        self.itself = self


@pytest.fixture(autouse=True)
def collector() -> Iterator[None]:
    """Leave the collector of the tests as it was."""
    usual = gc.get_threshold()
    yield
    gc.set_threshold(*usual)
    gc.unfreeze()


def collections_for(objects: int) -> int:
    """Return how often garbage is looked for while so many objects are made that stay."""
    begun: list[str] = []

    def note(phase: str, _: dict[str, int]) -> None:
        if phase == "start":
            begun.append(phase)

    gc.collect()
    gc.callbacks.append(note)
    try:
        kept = [[number] for number in range(objects)]
    finally:
        gc.callbacks.remove(note)
    assert len(kept) == objects
    return len(begun)


def test_the_start_makes_objects_without_looking_for_garbage() -> None:
    memory.collect_rarely()
    assert collections_for(10_000) == 0


def test_after_the_start_garbage_is_looked_for_as_often_as_before() -> None:
    usual = collections_for(10_000)
    memory.collect_rarely()
    memory.release_startup_memory()
    assert collections_for(10_000) == usual > 0


def test_garbage_of_a_long_wait_for_the_api_server_is_freed() -> None:
    memory.collect_rarely()
    first = weakref.ref(Cycle())
    assert first() is not None
    for _ in range(60_000):
        Cycle()
    assert first() is None


def test_garbage_that_has_become_old_is_freed_soon_after_a_large_start() -> None:
    """Python waits until there is a quarter as much as the last time. The start has made most."""
    memory.collect_rarely()
    started = [[number] for number in range(600_000)]
    memory.release_startup_memory()
    first = weakref.ref(Cycle())
    living = deque([first()], maxlen=10_000)
    for _ in range(100_000):
        living.append(Cycle())
    assert first() is None
    assert len(started) == 600_000
