"""Results of a benchmark can be written and read, and have a measure of certainty."""

from __future__ import annotations

import io
import json
from typing import Any

import pytest

from bpfsvc.devtools.bench.figures import (
    Spread,
    clients_text,
    duration_text,
    percentile,
    services_text,
)
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
    cells=[CELL, Cell("memory", "RSS", "tc", 0, "MB", (5.5,))],
    notes=["ipvs: the kernel has none"],
    seconds=12.5,
    quick=True,
)


def test_results_are_the_same_after_writing_and_reading_and_usual_values_are_left_out() -> None:
    text = RESULTS.to_json()
    assert Results.from_json(text) == RESULTS
    document = json.loads(text)
    assert document["format"] == "bpfsvc bench 2"
    assert set(document["cells"][1]) == {"suite", "kind", "mode", "services", "unit", "values"}


def test_the_scale_shows_the_requested_suites_and_modes_if_it_has_them() -> None:
    assert [RESULTS.wanted("services", size) for size in (100, 10_000)] == [True, False]
    assert RESULTS.wanted("suites", "pods") is None


def _changed(**fields: Any) -> str:
    return json.dumps(json.loads(RESULTS.to_json()) | fields)


@pytest.mark.parametrize(
    ("text", "why"),
    [
        pytest.param("{", "truncated", id="no JSON"),
        pytest.param("[]", "Expected `object`", id="another document"),
        pytest.param(_changed(format="fio 3"), "format", id="another format"),
        pytest.param(_changed(more=1), "unknown field `more`", id="an unknown field"),
        pytest.param(_changed(cells=[{"suite": "pods"}]), "missing required", id="half a cell"),
        pytest.param(_changed(notes=[1]), r"got `int` - at `\$.notes", id="a wrong type"),
    ],
)
def test_anything_else_is_one_clear_error(text: str, why: str) -> None:
    with pytest.raises(NoResults, match=why) as caught:
        Results.from_json(text)
    assert "\n" not in str(caught.value)


def test_median_and_quartiles_are_of_the_rounds() -> None:
    """Between two values the line between them counts."""
    assert CELL.spread == (1000, 900, 950, 1050, 1100)
    assert (CELL.median, CELL.ratio) == (1000, 1)
    assert CELL.spread.width == pytest.approx(0.1)
    assert Spread.of([4.0, 1.0, 3.0, 2.0, 5.0]) == (3.0, 1.0, 2.0, 4.0, 5.0)
    assert percentile([1.0, 2.0], 90) == pytest.approx(1.9)


def test_ratios_pair_rounds_and_end_with_the_shorter() -> None:
    assert ratios(CELL, CELL.having(values=(450.0, 1000.0))) == (2.0, 1.1)
    assert ratios(CELL, CELL.having(values=(0.0, 1000.0))) == (1.1,)
    assert ratios(CELL, CELL.having(cpu=(20.0,)), cpu=True) == (2.0,)


def test_a_cell_is_compared_with_another_mode_of_the_same_case() -> None:
    direct = CELL.having(mode="direct")
    others = [
        direct.having(clients=1),
        direct.having(services=5),
        direct.having(where="node"),
        direct.having(values=()),
    ]
    results = Results(cells=[CELL, *others, direct])
    assert results.beside(CELL, "direct") is direct
    assert results.beside(CELL, "nftables") is None
    assert results.fewest_clients(mode="direct") is others[0]


def test_modes_have_the_order_of_reports() -> None:
    modes = ["xdp", "other", "direct", "tc (json)", "tc", "iptables", "default"]
    assert sorted(modes, key=rank) == [
        *("default", "direct", "iptables", "tc", "tc (json)", "xdp", "other"),
    ]


def test_noise_is_reported_when_the_direct_case_varies_too_much() -> None:
    quiet = CELL.having(mode="direct", values=(100.0, 101.0, 102.0))
    assert noisy([quiet]) == ""
    warning = noisy([quiet, quiet.having(values=(100.0, 120.0, 140.0))])
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
    now = 0.0

    def __call__(self) -> float:
        return self.now


def test_without_a_terminal_progress_is_a_line_now_and_then() -> None:
    """At most one in ten seconds; the remaining time follows from the pace so far."""
    clock, stream = _Clock(), io.StringIO()
    with Progress(100, stream=stream, clock=clock) as progress:
        for at, text in ((0, "setting up"), (5, "too soon"), (40, "measuring [x]"), (49, "soon")):
            clock.now = at
            progress.show(text)
            progress.done(10)
        progress.note("ipvs is left out")
    assert stream.getvalue().splitlines() == [
        "bench:   0%, about 1 min 40 s left: setting up",
        "bench:  20%, about 2 min 40 s left: measuring [x]",
        "bench: ipvs is left out",
    ]


class _Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_at_a_terminal_progress_is_a_bar_that_leaves_nothing() -> None:
    """It shows the present text, brackets and all, and takes the cursor back on again."""
    clock, stream = _Clock(), _Terminal()
    with Progress(10, stream=stream, clock=clock) as progress:
        progress.done(5)
        clock.now = 5
        progress.show("round [2]")
        progress.note("a [note]")
    drawn = stream.getvalue()
    assert "50 %" in drawn
    assert "round [2]" in drawn
    assert "a [note]\n" in drawn
    assert drawn.index("\x1b[?25l") < drawn.index("\x1b[?25h")
