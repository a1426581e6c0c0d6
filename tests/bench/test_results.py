"""Results of a benchmark can be written and read, and have a measure of certainty."""

from __future__ import annotations

import io
import json
from dataclasses import replace
from typing import Any

import pytest

from bpfsvc.devtools.bench.figures import clients_text, duration_text, services_text
from bpfsvc.devtools.bench.progress import Progress
from bpfsvc.devtools.bench.results import Cell, NoResults, Results, noisy, rank, ratios

CELL = Cell(
    suite="pods",
    kind="connect",
    mode="tc",
    services=1,
    clients=4,
    where="pod",
    unit="per second",
    values=(900.0, 1100.0, 1000.0),
    ratios=(0.9, 1.1, 1.0),
    reference="direct",
    cpu=(40.0, 41.0, 42.0),
    latency={"50": 70.5, "99.9": 300.0},
    histogram=((64.0, 10), (128.0, 3)),
)
RESULTS = Results(
    machine={"kernel": "6.12", "cores": 2},
    scale={"rounds": 3, "services": [1, 100]},
    cells=[CELL, Cell(suite="memory", kind="RSS", mode="tc", services=0, unit="MB", values=(5.5,))],
    notes=["ipvs: the kernel has none"],
    seconds=12.5,
    quick=True,
)


def test_results_are_the_same_after_writing_and_reading() -> None:
    assert Results.from_json(RESULTS.to_json()) == RESULTS


def test_the_scale_shows_the_requested_suites_and_modes_if_it_has_them() -> None:
    assert [RESULTS.wanted("services", size) for size in (100, 10_000)] == [True, False]
    assert RESULTS.wanted("suites", "pods") is None
    assert RESULTS.wanted("rounds", 3) is None


def test_what_was_written_is_the_same_every_time_and_leaves_usual_values_out() -> None:
    assert RESULTS.to_json() == Results.from_json(RESULTS.to_json()).to_json()
    assert set(json.loads(RESULTS.to_json())["cells"][1]) == {
        *("suite", "kind", "mode", "services", "unit", "values"),
    }


def _changed(**fields: Any) -> str:
    return json.dumps(json.loads(RESULTS.to_json()) | fields)


def _cell(**fields: Any) -> str:
    cell = json.loads(RESULTS.to_json())["cells"][0] | fields
    return _changed(cells=[{name: value for name, value in cell.items() if value is not None}])


@pytest.mark.parametrize(
    ("text", "why"),
    [
        pytest.param("{", "JSON|truncated", id="no JSON"),
        pytest.param("[]", "format", id="another document"),
        pytest.param(_changed(format="fio 3"), "format", id="another format"),
        pytest.param(_changed(more=1), "the document has unknown fields: more", id="one field"),
        pytest.param(_changed(quick="yes"), r"got `str` - at `\$.quick`", id="a wrong type"),
        pytest.param(_changed(notes=[1]), r"got `int` - at `\$.notes", id="a number as note"),
        pytest.param(_changed(cells=[1]), r"got `int` - at `\$.cells", id="a number as cell"),
        pytest.param(_cell(colour="red"), "cell 0 has unknown fields: colour", id="one in a cell"),
        pytest.param(_cell(unit=None), "missing required field `unit`", id="a field is missing"),
        pytest.param(_cell(services="many"), r"cells\[0\].services", id="a size as word"),
        pytest.param(_cell(clients=True), r"cells\[0\].clients", id="a truth as number"),
        pytest.param(_cell(values=[1, "2"]), r"cells\[0\].values", id="a value as word"),
        pytest.param(_cell(values=[float("nan")]), "JSON is malformed", id="no number"),
        pytest.param(_cell(latency={"50": []}), r"cells\[0\].latency", id="a wrong percentile"),
        pytest.param(_cell(histogram=[[1.0]]), r"cells\[0\].histogram", id="half a bucket"),
    ],
)
def test_anything_else_is_one_clear_error(text: str, why: str) -> None:
    with pytest.raises(NoResults, match=why) as caught:
        Results.from_json(text)
    assert "\n" not in str(caught.value)


def test_a_rate_is_better_when_it_is_more_and_a_time_when_it_is_less() -> None:
    assert CELL.more_is_better
    assert replace(CELL, unit="bytes per second").more_is_better
    assert not replace(CELL, unit="ns").more_is_better


def test_median_and_quartiles_are_of_the_rounds() -> None:
    assert CELL.median == 1000
    assert (CELL.spread.quarter, CELL.spread.three_quarters) == (950, 1050)
    assert CELL.ratio == 1.0
    assert CELL.moves == pytest.approx(0.1)


def test_ratios_pair_rounds_and_end_with_the_shorter() -> None:
    assert ratios(CELL, replace(CELL, values=(450.0, 1000.0))) == (2.0, 1.1)
    assert ratios(CELL, replace(CELL, values=(0.0, 1000.0))) == (1.1,)


def test_a_cell_is_compared_with_another_mode_of_the_same_case() -> None:
    direct = replace(CELL, mode="direct")
    elsewhere = replace(CELL, mode="direct", clients=1)
    results = Results(cells=[CELL, elsewhere, direct])
    assert results.beside(CELL, "direct") is direct
    assert results.beside(CELL, "nftables") is None
    any_size = replace(CELL, mode="nftables", services=0)
    results.cells.append(any_size)
    assert results.beside(CELL, "nftables") is any_size


def test_a_cell_without_values_is_not_found_for_comparison() -> None:
    assert Results(cells=[replace(CELL, values=())]).one(mode="tc") is None


def test_modes_have_the_order_of_reports() -> None:
    modes = ["xdp", "other", "direct", "tc (json)", "tc", "empty", "iptables", "default"]
    assert sorted(modes, key=rank) == [
        *("empty", "default", "direct", "iptables", "tc", "tc (json)", "xdp", "other"),
    ]


def test_noise_is_reported_when_the_direct_case_varies_too_much() -> None:
    quiet = replace(CELL, mode="direct", values=(100.0, 101.0, 102.0))
    assert noisy([quiet]) == ""
    restless = replace(quiet, values=(100.0, 120.0, 140.0))
    warning = noisy([quiet, restless])
    assert warning.startswith("noise: direct itself moved by more than 5%")
    assert "1 of 2 cases, at most by 17%" in warning


def test_sizes_and_times_have_names() -> None:
    assert [services_text(number) for number in (0, 1, 10_000)] == [
        *("any size", "1 Service", "10,000 Services"),
    ]
    assert [clients_text(number) for number in (1, 16)] == ["1 client", "16 clients"]
    assert [duration_text(seconds) for seconds in (0.4, 59.6, 190, 3900)] == [
        *("0 s", "1 min 0 s", "3 min 10 s", "1 h 5 min"),
    ]


class _Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def test_without_a_terminal_progress_is_a_line_now_and_then() -> None:
    """At most one in ten seconds; the remaining time follows from the pace so far."""
    clock, stream = _Clock(), io.StringIO()
    with Progress(100, stream=stream, clock=clock) as progress:
        for at, text in ((0, "setting up"), (5, "too soon"), (20, "measuring"), (29, "too soon")):
            clock.now = at
            progress.step(text, 10)
        progress.note("ipvs is left out")
    assert stream.getvalue().splitlines() == [
        "bench:   0 %, about 1 min 40 s left: setting up",
        "bench:  20 %, about 1 min 20 s left: measuring",
        "bench: ipvs is left out",
    ]


def test_progress_learns_that_all_takes_twice_as_long_as_planned() -> None:
    clock = _Clock()
    progress = Progress(100, stream=io.StringIO(), clock=clock)
    progress.step("first", 50)
    assert progress.left() == 100
    clock.now = 100
    progress.step("second", 50)
    assert progress.left() == 100


class _Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_at_a_terminal_progress_is_a_bar_that_leaves_nothing() -> None:
    """It shows the present text, brackets and all, and takes the cursor back on again."""
    clock, stream = _Clock(), _Terminal()
    with Progress(10, stream=stream, clock=clock) as progress:
        progress.step("round [1]", 5)
        clock.now = 5
        progress.step("round [2]", 5)
        progress.note("a [note]")
    drawn = stream.getvalue()
    assert "50 %" in drawn
    assert "round [2]" in drawn
    assert "a [note]\n" in drawn
    assert drawn.index("\x1b[?25l") < drawn.index("\x1b[?25h")
