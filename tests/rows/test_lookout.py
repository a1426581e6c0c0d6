"""What looks round in a thread of its own tells what it saw, once and for good."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest

from bpfsvc.lab.patience import wait
from bpfsvc.lookout import Lookout


@pytest.fixture
def views() -> list[str]:
    return ["", "", "a wall", "a moat"]


@pytest.fixture
def lookout(views: list[str]) -> Iterator[Lookout]:
    made = Lookout(lambda: views.pop(0), 0.01)
    yield made
    made.stop()


def test_nothing_is_seen_before_anybody_looks(lookout: Lookout) -> None:
    assert lookout.seen == ""


def test_it_looks_until_it_sees_something_and_then_no_more(
    lookout: Lookout, views: list[str]
) -> None:
    lookout.start()
    wait(lambda: lookout.seen != "", "a sight")
    wait(lambda: not _is_alive(), "the end of the looking")
    assert lookout.seen == "a wall"
    assert views == ["a moat"]


def test_whoever_asks_does_not_wait_for_a_look_that_takes_its_time() -> None:
    began, end = threading.Event(), threading.Event()

    def look() -> str:
        began.set()
        end.wait(10)
        return "late"

    lookout = Lookout(look, 0.01)
    lookout.start()
    assert began.wait(10)
    assert lookout.seen == ""
    lookout.stop()
    end.set()
    wait(lambda: lookout.seen == "late", "the end of the look")


def test_one_that_is_stopped_looks_no_more() -> None:
    looks = ["never"]
    lookout = Lookout(looks.pop, 0.01)
    lookout.stop()
    lookout.start()
    wait(lambda: not _is_alive(), "its end")
    assert looks == ["never"]


def _is_alive() -> bool:
    return any(thread.name == "lookout" for thread in threading.enumerate())
