"""What commands print for people has at most 100 columns, or is folded to them."""

from __future__ import annotations

import re

import pytest

from bpfsvc.cli.doctor import by_severity, lines
from bpfsvc.doctor.finding import Level, note, ok, refuse, warning
from bpfsvc.inspect.maps.dump import available, dump
from bpfsvc.inspect.records import Records
from bpfsvc.inspect.services.look import look
from bpfsvc.inspect.services.tables import write_view
from bpfsvc.inspect.tables import folded, write_tables
from tests.inspect.busy import busy_node
from tests.inspect.pinned import Maps

WIDTH = 100
LONG = "a-name-of-as-many-letters-as-a-label-of-dns-may-have-sixty-three"
SENTENCE = "an interface that has a long name and a longer story " * 5


def long_names() -> Maps:
    """Return a busy node whose Services have names of 63 letters."""
    maps = busy_node()
    for key, raw in [*maps.entries("services")]:
        layout = maps.layout.maps["services"]
        fields = layout.value.unpack(raw)
        long_name = LONG[:63].encode()
        names = {"namespace": long_name, "name": long_name}
        maps.put("services", layout.key.unpack(key), {**fields, **names})
    return maps


def letters(text: str) -> str:
    return re.sub(r"\s", "", text)


@pytest.mark.parametrize("view", available(busy_node().layout))
def test_a_table_of_maps_is_folded(view: str) -> None:
    table = "".join(write_tables(dump(long_names(), [view])))
    text = "".join(folded([table], WIDTH))
    assert max(map(len, text.splitlines())) <= WIDTH
    assert letters(text) == letters(table)


@pytest.mark.parametrize("wide", [False, True])
@pytest.mark.parametrize("traffic", [False, True])
def test_tables_of_services_are_folded(wide: bool, traffic: bool) -> None:
    table = "".join(write_view(look(long_names(), traffic=traffic), wide=wide))
    assert LONG[:63] in table
    text = "".join(folded([table], WIDTH))
    assert max(map(len, text.splitlines())) <= WIDTH
    assert letters(text) == letters(table)


def test_rows_are_folded_where_their_head_is() -> None:
    rows = [("a" * 30, "b" * 40, "c" * 30, "d" * 20), ("a", "b", "c", "d")]
    table = write_tables([Records("things", ("first", "second", "third", "fourth"), rows)])
    text = [*folded(table, WIDTH)]
    assert [line.split() for line in text] == [
        *(["things", "(2)"], ["FIRST", "SECOND"], ["THIRD", "FOURTH"]),
        *(["a" * 30, "b" * 40], ["c" * 30, "d" * 20]),
        *(["a", "b"], ["c", "d"]),
    ]


def test_a_table_that_fits_stays() -> None:
    table = "things (1)\nFIRST  SECOND\na      b\n"
    assert "".join(folded([table], WIDTH)) == table


def test_findings_are_sorted_by_severity_and_folded() -> None:
    findings = [
        ok("kernel", SENTENCE),
        warning("ports", SENTENCE, SENTENCE),
        note("config", "short"),
        refuse("cgroup", SENTENCE, "mount it"),
        warning("others", "short", "remove it"),
    ]
    sorted_findings = by_severity(findings)
    assert [finding.subject for finding in sorted_findings] == [
        *("cgroup", "ports", "others", "config", "kernel"),
    ]
    shown = [*lines(sorted_findings)]
    assert max(map(len, shown)) <= WIDTH
    heads = [line.split()[0] for line in shown if not line.startswith(" ")]
    assert heads == [str(level) for level in (Level.REFUSE, Level.WARNING, Level.WARNING)] + [
        *("note", "ok"),
    ]
    assert "                  -> remove it" in shown
    hints = [line.split() for line in shown if line.lstrip().startswith("-> ")]
    assert len(hints) == 3
