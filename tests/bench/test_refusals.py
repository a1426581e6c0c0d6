"""The note that agents do not use the fast path is true of the time of the measurement."""

from __future__ import annotations

from contextlib import ExitStack
from types import SimpleNamespace
from typing import Any, cast

import pytest

from bpfsvc.devtools.bench.modes import DIRECT, ESTABLISHED
from bpfsvc.devtools.bench.results import Results
from bpfsvc.devtools.bench.suites import traffic
from bpfsvc.devtools.bench.suites.turns import Task
from bpfsvc.devtools.bench.testbeds.agents import last_refusal

READY = "INFO ready: 1 Service in the kernel after 0.50 s\n"
NOT_USED = "INFO the fast path is not used: {} (bpfsvc doctor shows details)\n"
USED = "INFO the fast path is used in the middle of connections: netfilter sees the rest\n"
UNTRACKED = NOT_USED.format("netfilter tracks no connections here")
GUARDED = NOT_USED.format("a rule in FORWARD")


@pytest.mark.parametrize(
    ("log", "refusal"),
    [
        (READY, ""),
        (USED + READY, ""),
        (UNTRACKED + READY, "netfilter tracks no connections here (bpfsvc doctor shows details)"),
        (UNTRACKED + READY + USED, ""),
        (UNTRACKED + USED + GUARDED, "a rule in FORWARD (bpfsvc doctor shows details)"),
    ],
)
def test_what_an_agent_said_last_of_the_fast_path_counts(log: str, refusal: str) -> None:
    assert last_refusal(log) == refusal


class Testbed:
    """A testbed whose agents give these reasons now."""

    def __init__(self, mode: str) -> None:
        self.mode = mode
        self.reasons: list[str] = []

    def refusals(self) -> list[str]:
        return self.reasons


def test_refusals_are_asked_after_each_measurement_and_noted_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    results = Results(machine={}, date="", scale={})
    testbeds = [Testbed(DIRECT), Testbed(ESTABLISHED)]
    size = traffic._Size(
        cast(Any, SimpleNamespace(results=results, scale=None)),
        1,
        cast(Any, None),
        ExitStack(),
        cast(Any, testbeds),
    )
    during = iter(
        [[], ["node-1 does not use the fast path"], ["node-1 does not use the fast path"]]
    )

    def measure(*_: object) -> None:
        testbeds[1].reasons = next(during)

    monkeypatch.setattr(traffic, "measure", measure)
    task = Task("pods", "connect", "pod", 1)
    size._measure(task, lambda _: None)
    assert results.notes == []
    size._measure(task, lambda _: None)
    size._measure(task, lambda _: None)
    assert results.notes == ["1 Service, established: node-1 does not use the fast path"]
