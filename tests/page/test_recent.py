"""A value that is read serves for a while, and longer if reading it takes long."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from bpfsvc.page.recent import Recent


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def test_a_value_serves_for_two_seconds_if_it_is_read_quickly() -> None:
    clock, values = Clock(), iter(range(9))
    recent = Recent(lambda: next(values), clock)
    assert recent.get().value == 0
    clock.now += 1.9
    assert recent.get().value == 0
    clock.now += 0.2
    assert recent.get().value == 1


def test_what_takes_long_is_read_for_a_sixth_of_the_time() -> None:
    clock = Clock()
    reads = []

    def read() -> int:
        clock.now += 4.0
        reads.append(clock.now)
        return len(reads)

    recent = Recent(read, clock)
    assert recent.get().value == 1
    clock.now += 19.0
    assert recent.get().value == 1
    clock.now += 2.0
    assert recent.get().value == 2


def test_a_failure_is_not_kept() -> None:
    answers: Iterator[OSError | str] = iter((OSError("gone"), "here"))

    def read() -> str:
        answer = next(answers)
        if isinstance(answer, Exception):
            raise answer
        return answer

    recent = Recent(read, Clock())
    with pytest.raises(OSError, match="gone"):
        recent.get()
    assert recent.get().value == "here"
