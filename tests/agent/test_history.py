"""The memory of changes: what a record says, its size, and what a restart leaves of it."""

from __future__ import annotations

import json
import time
import tracemalloc
from pathlib import Path
from typing import Any

import pytest

from bpfsvc.agent.history.changes import History
from bpfsvc.agent.history.saved_records import MEGABYTE, SavedRecords
from bpfsvc.model import ModelObject
from bpfsvc.model.answers import ChangeRecord, Names, encode
from bpfsvc.services.plans.plan import Plan
from tests.services.kernel import new_planner
from tests.services.objects import endpoint_slice, service

HERE, THERE = "10.0.0.1 here", "10.0.0.2 there"
WEB = ("default", "web")
_MANY = [[f"10.{second}.0.{number} here" for number in range(1, 51)] for second in (1, 2)]


class Remembered:
    """A planner whose plans are remembered."""

    def __init__(self, path: Path | None = None, megabytes: int = 1) -> None:
        self.planner = new_planner()
        self.history = History(path, megabytes)
        self.history.load()

    def put(self, *objects: ModelObject) -> None:
        self._sync(self.planner.cache.apply(objects, ()))

    def drop(self, gone: ModelObject) -> None:
        self._sync(self.planner.cache.apply((), [gone.key]))

    def records(self, of: tuple[str, str] | None = None) -> list[dict[str, Any]]:
        records: list[dict[str, Any]] = json.loads(self.history.json(of))
        return records

    def _sync(self, touched: set[tuple[str, str]]) -> None:
        def write(plan: Plan) -> None:
            self.history.note(plan, self.planner.applied_state)

        self.planner.sync(touched, 0, write)


def test_a_record_names_the_service_and_what_came_and_went() -> None:
    node = Remembered()
    before = time.time()
    node.put(service(), endpoint_slice(HERE))
    node.put(endpoint_slice(THERE))
    node.drop(service())
    assert [
        (record["what"], record["endpoints"], record.get("frontends")) for record in node.records()
    ] == [
        ("added", {"added": ["10.0.0.1:8080"]}, {"added": ["10.96.0.1:80/TCP"]}),
        ("changed", {"added": ["10.0.0.2:8080"], "removed": ["10.0.0.1:8080"]}, {}),
        ("removed", {"removed": ["10.0.0.2:8080"]}, {"removed": ["10.96.0.1:80/TCP"]}),
    ]
    assert all(record["services"] == ["default/web"] for record in node.records())
    assert all(before - 1 <= record["at"] <= time.time() + 1 for record in node.records())


def test_a_change_says_how_long_its_event_has_waited_and_one_by_the_clock_does_not() -> None:
    node = Remembered()
    with node.history.caused_at(time.monotonic() - 2):
        node.put(service())
    node.put(endpoint_slice(HERE))
    caused, by_clock = node.records()
    assert 2000 <= caused["waited_ms"] < 60_000
    assert "waited_ms" not in by_clock


def test_the_changes_of_one_service_are_found_among_others() -> None:
    node = Remembered()
    node.put(service(), service("other"))
    node.put(endpoint_slice(HERE))
    assert [record["what"] for record in node.records(WEB)] == ["added", "changed"]
    assert node.records(("default", "missing")) == []


def test_many_services_at_once_are_one_record_that_each_of_them_has() -> None:
    node = Remembered()
    node.put(*(service(f"s{number}") for number in range(150)))
    (record,) = node.records()
    assert (record["what"], len(record["services"])) == ("together", 150)
    assert node.records(("default", "s149")) == [record]


def test_a_record_of_a_thousand_endpoints_names_64_and_counts_the_others() -> None:
    node = Remembered()
    many = [f"10.1.{number // 250}.{number % 250 + 1} here" for number in range(1000)]
    node.put(service(), endpoint_slice(*many))
    (record,) = node.records()
    assert (len(record["endpoints"]["added"]), record["endpoints"]["more"]) == (64, 936)


def test_the_oldest_records_go_when_the_size_is_reached() -> None:
    node = Remembered()
    node.put(service(), endpoint_slice(HERE))
    first = node.records()[0]
    for number in range(1000):
        node.put(endpoint_slice(*_MANY[number % 2]))
    records = node.records()
    assert first not in records
    assert 200 < len(records) < 1000
    assert len(node.history.json(None)) < MEGABYTE


@pytest.mark.parametrize("saves", [1, 3])
def test_another_agent_begins_with_what_was_saved(tmp_path: Path, saves: int) -> None:
    path = tmp_path / "new" / "history"
    node = Remembered(path)
    for number in range(saves):
        node.put(service(f"s{number}"))
        node.history.save()
    node.history.save()
    assert Remembered(path).records() == node.records()
    assert len(node.records()) == saves
    assert path.stat().st_mode & 0o077 == 0


def test_two_files_take_turns_and_stay_small(tmp_path: Path) -> None:
    path = tmp_path / "history"
    node = Remembered(path)
    node.put(service())
    for number in range(1000):
        node.put(endpoint_slice(*_MANY[number % 2]))
        if number % 10 == 0:
            node.history.save()
    node.history.save()
    assert {file.name for file in tmp_path.iterdir()} == {"history", "history.old"}
    assert sum(file.stat().st_size for file in tmp_path.iterdir()) < 1.2 * MEGABYTE
    assert Remembered(path).records()[-1] == node.records()[-1]


def test_a_damaged_line_costs_itself(tmp_path: Path) -> None:
    path = tmp_path / "history"
    node = Remembered(path)
    node.put(service())
    node.put(endpoint_slice(HERE))
    node.history.save()
    first, second = path.read_bytes().splitlines()
    path.write_bytes(first[:-5] + b"\n" + second + b"\n\xff\n")
    assert Remembered(path).records() == node.records()[1:]


def test_a_file_that_cannot_be_written_is_said_once_and_costs_nothing_else(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "file").touch()
    node = Remembered(tmp_path / "file" / "history")
    for name in ("a", "b"):
        node.put(service(name))
        node.history.save()
    (line,) = [text for text in caplog.messages if "cannot be written" in text]
    assert line.endswith("bpfsvc history knows nothing from before the next start")
    assert len(node.records()) == 2


def test_zero_megabytes_remember_nothing(tmp_path: Path) -> None:
    node = Remembered(tmp_path / "history", 0)
    node.put(service())
    node.history.save()
    assert node.records() == []
    assert not [*tmp_path.iterdir()]


def test_records_take_no_more_memory_than_the_limit_says() -> None:
    limit = MEGABYTE
    records = SavedRecords(None, limit)
    tracemalloc.start()
    try:
        for number in range(4_000):
            endpoints = Names(added=[f"10.244.1.{number % 250}:8080"])
            services = [f"default/web-{number % 30}"]
            record = ChangeRecord(
                at=1e9 + number, services=services, what="changed", endpoints=endpoints
            )
            records.add(services, encode(record))
        taken = tracemalloc.get_traced_memory()[0]
    finally:
        tracemalloc.stop()
    assert 0.8 * limit < taken < limit
    assert 2_000 < len(records.texts("")) < 4_000
