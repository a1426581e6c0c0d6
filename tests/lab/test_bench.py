"""The benchmarks run and report numbers that can be true; no claim about speed."""

from __future__ import annotations

import json
import struct

import pytest

from bpfsvc.bench import report, syns
from bpfsvc.bench.change import change
from bpfsvc.bench.churn import churn
from bpfsvc.bench.figures import Row, Scale, Spread, percentile
from bpfsvc.bench.flood import flood
from bpfsvc.bench.latency import latency
from bpfsvc.bench.start import start

TINY = Scale(
    services=(3,),
    rounds=1,
    slices=1,
    slice_seconds=0.02,
    changes=3,
    starts=1,
    flood_seconds=0.3,
    flood_rates=(1000,),
    churn_rate=100,
    churn_seconds=1.0,
    idle_seconds=0.5,
)


def _number(row: Row, column: str) -> float:
    value = row[column]
    assert not isinstance(value, str)
    return value


def _say(_line: str) -> None:
    """Say nothing."""


def test_latency_compares_every_way_from_both_places() -> None:
    """A pod and the node, both kinds of transaction, three ways each, against none."""
    rows = latency(TINY, _say)
    ways = {(row["from"], row["transaction"], row["variant"]) for row in rows}
    assert ways == {
        (place, kind, variant)
        for place in ("pod", "node")
        for kind in ("connect", "request")
        for variant in ("control", "direct", "cluster IP")
    }
    for row in rows:
        assert 0 < _number(row, "ratio min") <= _number(row, "ratio") <= _number(row, "ratio max")
        assert 0 < _number(row, "CPU us") < 1e5
        assert _number(row, "per second") > 0


def test_change_sees_the_new_backend_after_every_change() -> None:
    """As many times as there were changes, none of them before its change."""
    rows = change(TINY, _say)
    assert [row["from"] for row in rows] == ["API", "json"]
    for row in rows:
        assert row["services"] == 3
        assert row["changes"] == TINY.changes
        assert 0 < _number(row, "ms min") <= _number(row, "ms") <= _number(row, "ms max")
        assert _number(row, "questions") >= TINY.changes


def test_churn_changes_all_services_while_one_is_watched() -> None:
    """As often as was asked, and all of it is told soon after."""
    about, quiet, busy = churn(TINY, _say)
    assert about["made"] == TINY.churn_rate * TINY.churn_seconds
    assert _number(about, "drained s") < 1
    assert 0 <= _number(about, "CPU % idle") < _number(about, "CPU % busy") < 200
    for row in (quiet, busy):
        assert _number(row, "changes watched") > 0
        assert 0 < _number(row, "ms min") <= _number(row, "ms") <= _number(row, "ms max")


def test_start_times_and_weighs_the_agent() -> None:
    """Cold and warm, from a server and both formats, and both processes weigh something."""
    rows = start(TINY, _say)
    times = [row for row in rows if "seconds" in row]
    weights = [row for row in rows if "memory" in row]
    assert {row["from"] for row in times} == {"API", "json", "yaml"}
    assert {row["seconds"] for row in times} == {
        "until healthy, cold",
        "until the first packet, cold",
        "until healthy, after a boot",
        "until the first packet, after a boot",
        "of CPU until healthy, after a boot",
        "until healthy, warm",
        "of CPU until healthy, cold",
        "of CPU until healthy, warm",
    }
    assert all(0 < _number(row, "s") < 60 for row in times)
    assert all(5 < _number(row, "RSS MB") < 1000 for row in weights)


def test_a_flood_is_sent_and_leaves_established_connections_alone() -> None:
    """Three phases for each target; first packets are noticed where there is a Service."""
    rows = flood(TINY, _say)
    assert [(row["to"], row["phase"]) for row in rows] == [
        (target, phase)
        for target in ("closed port", "Service")
        for phase in ("before", "during", "after")
    ]
    for row in rows:
        assert (_number(row, "SYNs sent") > 0) == (row["phase"] == "during")
        assert row["failed"] == 0
        assert _number(row, "established") > 0
    before, during = (rows[at] for at in (3, 4))
    held = [
        sum(_number(row, table) for table in ("new_connections", "connections"))
        for row in (before, during)
    ]
    assert held[1] > held[0]


@pytest.mark.parametrize("number", [0, 1, 64_511, 64_512, 5_000_000], ids=lambda n: f"SYN {n}")
def test_every_syn_of_the_flood_has_right_checksums(number: int) -> None:
    """Whatever the source, both sums of the frame come to nothing."""
    make = syns.maker(b"\2" + bytes(5), b"\4" + bytes(5), ("192.0.2.77", 30080))
    frame = make(number)
    assert len(frame) == 54
    assert syns.fold(frame[14:34]) == 0
    assert syns.fold(frame[34:] + frame[26:34] + struct.pack("!HH", 6, 20)) == 0


def test_spread_holds_median_quartiles_and_ends() -> None:
    """Between two values the line between them counts."""
    assert Spread.of([4.0, 1.0, 3.0, 2.0, 5.0]) == (3.0, 1.0, 2.0, 4.0, 5.0)
    assert percentile([1.0, 2.0], 90) == pytest.approx(1.9)


def test_report_is_the_same_in_both_forms() -> None:
    """The JSON names the machine and holds the rows; the table has a column for each figure."""
    rows: list[Row] = [{"services": 2, "ms": 1.5}, {"services": 10_000, "ms": 1.75}]
    read = json.loads(report.as_json({"change": rows}, TINY))
    assert read["suites"]["change"] == rows
    assert {"kernel", "cores"} <= set(read["machine"])
    assert report.as_table("change", rows).split() == [
        "change:",
        "services",
        "ms",
        "2",
        "1.500",
        "10000",
        "1.750",
    ]
