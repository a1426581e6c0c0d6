"""A thread finds the level of the fast path that may be used, and never makes others wait."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager

import pytest

from bpfsvc.agent.node.fast_path_guard import FastPathGuard, Look
from bpfsvc.base.fast_path import ESTABLISHED, FAST, STACK, FastPathUse
from bpfsvc.devtools.lab.namespace import Namespace
from bpfsvc.devtools.lab.patience import wait

LONG = 1000.0
SHORT = 0.01


def always(use: Callable[[FastPathUse], FastPathUse]) -> Look:
    """Return a look that does not ask whether rules have changed."""

    def called(now: FastPathUse, *, rules_changed: bool) -> FastPathUse:
        assert rules_changed in (True, False)
        return use(now)

    return called


@contextmanager
def guard(look: Callable[[FastPathUse], FastPathUse]) -> Iterator[FastPathGuard]:
    made = FastPathGuard(always(look), SHORT)
    made.start()
    with stopping(made):
        yield made


@contextmanager
def stopping(made: FastPathGuard) -> Iterator[None]:
    try:
        yield
    finally:
        made.stop()


def test_the_first_look_is_taken_before_anything_is_served() -> None:
    asked: list[FastPathUse] = []

    def look(now: FastPathUse) -> FastPathUse:
        asked.append(now)
        return FastPathUse(ESTABLISHED, "policies")

    assert FastPathGuard(always(look)).use == (ESTABLISHED, "policies")
    assert asked == [(STACK, "")]


def test_each_level_that_a_look_returns_is_the_next_look_asked_about() -> None:
    use = FastPathUse(FAST)
    asked: list[FastPathUse] = []

    def look(now: FastPathUse) -> FastPathUse:
        asked.append(now)
        return use

    with guard(look) as made:
        for use in (
            FastPathUse(ESTABLISHED, "a rule"),
            FastPathUse(STACK, "another rule"),
            FastPathUse(ESTABLISHED, "a rule"),
            FastPathUse(FAST),
        ):
            wait(lambda use=use: made.use == use == asked[-1], f"{use}")  # type: ignore[misc]


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_without_anybody_who_looks_the_stack_serves_all() -> None:
    """An unexpected error ends the thread."""
    looks = 0

    def fail(_: FastPathUse) -> FastPathUse:
        nonlocal looks
        looks += 1
        if looks > 1:
            raise RuntimeError
        return FastPathUse(FAST)

    with guard(fail) as made:
        wait(lambda: "has ended" in made.use.reason, "the reason")
        assert made.use.level == STACK


def test_reading_the_level_does_not_wait_for_a_slow_look() -> None:
    began, end = threading.Event(), threading.Event()
    looks = 0

    def look(_: FastPathUse) -> FastPathUse:
        nonlocal looks
        looks += 1
        if looks == 1:
            return FastPathUse(FAST)
        began.set()
        end.wait(10)
        return FastPathUse(STACK, "late")

    with guard(look) as made:
        assert began.wait(10)
        assert made.use.level == FAST
        end.set()
        wait(lambda: made.use.reason == "late", "the end of the look")


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

    def look(now: FastPathUse, *, rules_changed: bool) -> FastPathUse:
        looks.put(rules_changed)
        return now

    namespace = Namespace("guarded")
    with closing(namespace), namespace.entered():
        made = FastPathGuard(look, LONG)
        made.start()
        with stopping(made):
            # The first look, and the next: rules may have changed before the subscription.
            assert [looks.get(timeout=10) for _ in range(2)] == [True, True]
            namespace.run(rule)
            assert looks.get(timeout=5)


def test_a_look_by_the_clock_knows_that_no_rule_has_changed() -> None:
    looks: queue.Queue[bool] = queue.Queue()

    def look(now: FastPathUse, *, rules_changed: bool) -> FastPathUse:
        looks.put(rules_changed)
        return now

    made = FastPathGuard(look, SHORT)
    made.start()
    with stopping(made):
        assert [looks.get(timeout=10) for _ in range(4)] == [True, True, False, False]
