"""Whether the fast path may be used is found out in a thread, which never makes others wait."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager

import pytest

from bpfsvc.agent.node.fast_path_guard import FastPathGuard, Look
from bpfsvc.devtools.lab.namespace import Namespace
from bpfsvc.devtools.lab.patience import wait

LONG = 1000.0
SHORT = 0.01


def ignoring(look: Callable[[], str]) -> Look:
    """Return a look that does not ask whether rules have changed."""

    def called(*, rules_changed: bool) -> str:
        assert rules_changed in (True, False)
        return look()

    return called


@contextmanager
def guard(
    objections: Callable[[], str], obstacles: Callable[[], str], look_seconds: float = SHORT
) -> Iterator[FastPathGuard]:
    made = FastPathGuard(ignoring(objections), ignoring(obstacles), look_seconds)
    made.start()
    try:
        yield made
    finally:
        made.stop()


@contextmanager
def stopping(made: FastPathGuard) -> Iterator[None]:
    try:
        yield
    finally:
        made.stop()


def test_the_first_look_is_taken_before_anything_is_served() -> None:
    forbidden, allowed = ignoring(lambda: "policies"), ignoring(lambda: "")
    assert FastPathGuard(forbidden, allowed).reason == "policies"
    assert FastPathGuard(allowed, forbidden).reason == ""


def test_a_reason_that_comes_and_goes_is_followed() -> None:
    reason = ""
    with guard(lambda: reason, lambda: reason) as made:
        for reason in ("a rule", "", "another rule", ""):
            wait(lambda reason=reason: made.reason == reason, f"the reason {reason!r}")  # type: ignore[misc]


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_without_anybody_who_looks_the_fast_path_is_given_up() -> None:
    """An unexpected error ends the thread."""

    def fail() -> str:
        raise RuntimeError

    with guard(lambda: "", fail) as made:
        wait(lambda: "has ended" in made.reason, "the reason")


def test_what_cannot_be_checked_prevents_the_fast_path_and_does_not_end_it() -> None:
    """nft may fail once under load; at the start its answer is not known yet."""
    unseen, looks = "", threading.Semaphore(0)

    def obstacles() -> str:
        looks.release()
        return ""

    with guard(lambda: unseen, obstacles) as made:
        unseen = "nft cannot be run"
        for _ in range(3):
            assert looks.acquire(timeout=10)
        assert made.reason == ""
    with guard(lambda: unseen, obstacles) as made:
        assert made.reason == "nft cannot be run"
        unseen = ""
        wait(lambda: made.reason == "", "what could not be checked is checked")


def test_reading_the_reason_does_not_wait_for_a_slow_look() -> None:
    began, end = threading.Event(), threading.Event()

    def obstacles() -> str:
        began.set()
        end.wait(10)
        return "late"

    with guard(lambda: "", obstacles) as made:
        assert began.wait(10)
        assert made.reason == ""
        end.set()
        wait(lambda: made.reason == "late", "the end of the look")


@pytest.mark.parametrize(
    "rule",
    [
        ["nft", "add table inet guard"],
        ["iptables", "-w", "-A", "FORWARD", "-s", "10.9.0.0/16", "-j", "DROP"],
    ],
    ids=["nftables", "iptables"],
)
def test_a_change_of_rules_is_looked_at_at_once(rule: list[str]) -> None:
    """As the kernel announces it; the next look by the clock would be a quarter of an hour away."""
    looks: queue.Queue[bool] = queue.Queue()

    def obstacles(*, rules_changed: bool) -> str:
        looks.put(rules_changed)
        return ""

    namespace = Namespace("guarded")
    with closing(namespace), namespace.entered():
        made = FastPathGuard(ignoring(lambda: ""), obstacles, LONG)
        made.start()
        with stopping(made):
            assert looks.get(
                timeout=10
            )  # the first one: rules may have changed before the subscription
            namespace.run(rule)
            assert looks.get(timeout=5)


def test_a_look_by_the_clock_knows_that_no_rule_has_changed() -> None:
    looks: queue.Queue[bool] = queue.Queue()

    def obstacles(*, rules_changed: bool) -> str:
        looks.put(rules_changed)
        return ""

    made = FastPathGuard(ignoring(lambda: ""), obstacles, SHORT)
    made.start()
    with stopping(made):
        assert [looks.get(timeout=10) for _ in range(3)] == [True, False, False]
