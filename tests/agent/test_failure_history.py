"""The memory of failed connections: what becomes a record and when, and what a restart leaves."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from bpfsvc.agent.flows.failed_backends import FailedBackends
from bpfsvc.agent.flows.failure_window import BackendCounts
from bpfsvc.agent.history.failures import MOST_KINDS, SECONDS, FailureHistory
from bpfsvc.agent.history.saved_records import FAILURES_SHARE
from bpfsvc.model.failures import Failure, added
from bpfsvc.services.plans.plan import Plan
from tests.services.kernel import new_planner
from tests.services.objects import endpoint_slice, service

END = float("inf")


def failure(at: float = 1.0, service_port: str = "shop/web:http", **fields: Any) -> Failure:
    given: dict[str, Any] = {
        "kind": "refused",
        "reason": "no_endpoints",
        "count": 1,
        "first": at,
        "last": at,
    }
    return Failure(service_port, **(given | fields))


def records(history: FailureHistory, of: tuple[str, str] | None = None) -> list[Failure]:
    """Return the sums of what is remembered."""
    return added(Failure(**record) for record in json.loads(history.json(of)))


def loaded(path: Path) -> FailureHistory:
    """Return the memory of the next agent."""
    history = FailureHistory(path, 1)
    history.load()
    return history


def test_the_first_failure_of_a_kind_is_saved_at_once_and_the_next_ones_together(
    tmp_path: Path,
) -> None:
    path = tmp_path / "history"
    history = FailureHistory(path, 1)
    for second in range(1, 21):
        history.note(failure(float(second), clients=[f"203.0.113.{second}"]))
        history.save(now=100.0 + second)
    (killed,) = records(loaded(path))
    assert (killed.count, killed.first, killed.clients) == (1, 1.0, ["203.0.113.1"])
    history.save(now=101.0 + SECONDS)
    (saved,) = records(loaded(path))
    assert (saved.count, saved.first, saved.last) == (20, 1.0, 20.0)
    assert saved.clients == ["203.0.113.1", "203.0.113.2", "203.0.113.3"]
    assert [file.name for file in tmp_path.iterdir()] == ["history.failures"]
    assert len((tmp_path / "history.failures").read_bytes().splitlines()) == 2


def test_an_agent_that_ends_has_saved_all(tmp_path: Path) -> None:
    history = FailureHistory(tmp_path / "history", 1)
    for second in range(1, 21):
        history.note(failure(float(second)))
        history.save(now=100.0 + second)
    history.save(END)
    assert records(loaded(tmp_path / "history")) == records(history)
    assert records(history)[0].count == 20


def test_what_is_no_record_yet_is_shown(tmp_path: Path) -> None:
    history = FailureHistory(tmp_path / "history", 1)
    history.note(failure(1.0))
    history.save(now=100.0)
    history.note(failure(2.0, count=16))
    (shown,) = records(history)
    assert (shown.count, shown.last) == (17, 2.0)


def test_the_failures_of_a_service_are_found_among_others() -> None:
    history = FailureHistory(None, 1)
    history.note(failure())
    history.note(failure(service_port="shop/web:https"))
    history.note(failure(service_port="shop/other:http"))
    history.save(now=1.0)
    history.note(failure(service_port="shop/web:http", kind="dropped"))
    assert [(known.service, known.kind) for known in records(history, ("shop", "web"))] == [
        ("shop/web:http", "refused"),
        ("shop/web:https", "refused"),
        ("shop/web:http", "dropped"),
    ]
    assert records(history, ("shop", "we")) == []


def test_a_night_of_failures_of_very_many_kinds_stays_in_its_size(tmp_path: Path) -> None:
    path = tmp_path / "history"
    history = FailureHistory(path, 1)
    for number in range(3 * MOST_KINDS):
        history.note(failure(float(number), backend=f"10.0.0.1:{number}", kind="unanswered"))
        if number % 1000 == 0:
            history.save(now=float(number))
    history.save(END)
    kept = records(history)
    assert kept[-1].last == 3 * MOST_KINDS - 1
    assert len(history.json(None)) < FAILURES_SHARE
    assert sum(file.stat().st_size for file in tmp_path.iterdir()) < 1.5 * FAILURES_SHARE
    assert records(loaded(path))[-1] == kept[-1]


def test_zero_megabytes_remember_nothing(tmp_path: Path) -> None:
    history = FailureHistory(tmp_path / "history", 0)
    history.note(failure())
    history.save(END)
    assert records(history) == []
    assert not [*tmp_path.iterdir()]


def test_a_damaged_line_costs_itself(tmp_path: Path) -> None:
    history = FailureHistory(tmp_path / "history", 1)
    for kind in ("refused", "dropped"):
        history.note(failure(kind=kind))
    history.save(END)
    saved = tmp_path / "history.failures"
    first, second = saved.read_bytes().splitlines()
    saved.write_bytes(first[:-5] + b"\n" + second + b"\n\xff\n")
    assert [known.kind for known in records(loaded(tmp_path / "history"))] == ["dropped"]


@pytest.fixture
def backends() -> tuple[FailedBackends, FailureHistory, int]:
    """A Service with one backend: what counts its failures, and the index of its counters."""
    planner, history = new_planner(), FailureHistory(None, 1)

    def write(plan: Plan) -> None:
        pass

    touched = planner.cache.apply([service(), endpoint_slice("10.0.0.1 here")], ())
    planner.sync(touched, 0, write)
    (port,) = planner.applied_state
    (index,) = port.counter_ids
    return FailedBackends(planner, history), history, index


def test_failures_that_the_programs_count_name_their_backend(
    backends: tuple[FailedBackends, FailureHistory, int],
) -> None:
    failed, history, index = backends
    failed.update({index: BackendCounts(refused=5)})  # before this agent
    assert records(history) == []
    failed.update({index: BackendCounts(refused=7, unanswered=1), index + 1: BackendCounts(0, 9)})
    failed.update({index: BackendCounts(refused=7, unanswered=1, unreachable=2)})
    told = [(known.kind, known.reason, known.backend, known.count) for known in records(history)]
    (port,) = {known.service for known in records(history)}
    assert port.startswith("default/web:")
    assert told == [
        ("refused", "backend_reset", "10.0.0.1:8080 (here)", 2),
        ("unanswered", "", "10.0.0.1:8080 (here)", 1),
        ("unreachable", "", "10.0.0.1:8080 (here)", 2),
    ]


def test_smaller_counts_than_before_are_those_of_another_backend(
    backends: tuple[FailedBackends, FailureHistory, int],
) -> None:
    failed, history, index = backends
    failed.update({index: BackendCounts(refused=5)})
    failed.update({index: BackendCounts(refused=2)})
    (known,) = records(history)
    assert known.count == 2
