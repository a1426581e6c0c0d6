"""``maps dump --watch``: which rows come, change and go between two dumps."""

from __future__ import annotations

import json

import pytest

from bpfsvc.inspect.changes import Change, Changes, write_json_lines, write_lines
from bpfsvc.inspect.maps.dump import dump
from bpfsvc.inspect.records import Records
from tests.inspect.inspected import web
from tests.inspect.pinned import Maps

COLUMNS = ("service", "backend", "packets", "age")


def rows(*some: tuple[str, str, int, float]) -> list[Records]:
    return [Records("backends", COLUMNS, some, frozenset({"age"}), keys=2)]


WEB = ("default/web", "10.0.0.1:80", 5, 0.1)
DNS = ("default/dns", "10.0.0.2:53", 7, 0.1)


@pytest.fixture
def changes() -> Changes:
    """A watch that has seen one row."""
    made = Changes()
    assert list(made.update(rows(WEB))) == []
    return made


def found(kind: str, row: tuple[str, str, int, float], **before: int) -> Change:
    return Change(kind, "backends", dict(zip(COLUMNS, row, strict=True)), dict(before))


def test_rows_that_come_and_go_are_shown(changes: Changes) -> None:
    assert list(changes.update(rows(WEB, DNS))) == [found("added", DNS)]
    assert list(changes.update(rows(DNS))) == [found("removed", WEB)]
    assert list(changes.update(rows(DNS))) == []


def test_a_row_with_other_values_has_changed(changes: Changes) -> None:
    more = (*WEB[:2], 9, 0.1)
    assert list(changes.update(rows(more))) == [found("changed", more, packets=5)]


def test_time_that_passes_is_no_change(changes: Changes) -> None:
    assert list(changes.update(rows((*WEB[:3], 60.0)))) == []


def test_rows_with_the_same_name_are_told_apart_by_their_order(changes: Changes) -> None:
    second = (*WEB[:2], 8, 0.1)
    assert list(changes.update(rows(WEB, second))) == [found("added", second)]
    assert list(changes.update(rows(WEB))) == [found("removed", second)]


def test_a_map_of_another_build_begins_anew(changes: Changes) -> None:
    other = [Records("backends", ("backend",), (("10.0.0.9:80",),), keys=1)]
    assert list(changes.update(other)) == []


def test_a_line_has_names_and_both_values_of_a_change(changes: Changes) -> None:
    more = (*WEB[:2], 9, 0.1)
    (line,) = write_lines(changes.update(rows(more)))
    assert line.split(" ", 1)[1] == (
        "changed backends service=default/web backend=10.0.0.1:80 packets=5->9 age=0.1\n"
    )


def test_json_has_an_object_in_each_line(changes: Changes) -> None:
    more = (*WEB[:2], 9, 0.1)
    lines = [json.loads(line) for line in write_json_lines(changes.update(rows(more, DNS)))]
    assert [(line["change"], line["map"]) for line in lines] == [
        ("changed", "backends"),
        ("added", "backends"),
    ]
    assert lines[0]["row"]["packets"] == 9
    assert lines[0]["before"] == {"packets": 5}
    assert "before" not in lines[1]


def test_a_rollout_changes_the_generation_of_backends_that_stay() -> None:
    """Real views: a row is known by the Service and the backend, not by its slot."""
    before, after = Maps(), Maps()
    web(before)
    web(after)
    for (key, value), slot in zip(list(after.entries("backends")), (0, 1), strict=True):
        fields = after.layout.maps["backends"].key
        after._rows["backends"].pop(key)
        moved = fields.pack({"service": 1, "generation": 10, "slot": slot})
        after._rows["backends"][moved] = value
    changes = Changes()
    list(changes.update(dump(before, ["backends"])))
    shown = list(changes.update(dump(after, ["backends"])))
    assert [(change.kind, change.before) for change in shown] == [
        ("changed", {"generation": 9})
    ] * 2
