"""The reports of a run agree with each other and hide no loss."""

from __future__ import annotations

import csv as sheets
import io
import re
import subprocess
import sys
from dataclasses import replace

import pytest

from bpfsvc.devtools.bench import report
from bpfsvc.devtools.bench.report.losses import all_losses, losses
from bpfsvc.devtools.bench.report.summary import summary
from bpfsvc.devtools.bench.report.tables import tables
from bpfsvc.devtools.bench.report.text import digits, factor, short, span
from bpfsvc.devtools.bench.results import Cell, Results
from tests.bench.measured import cell_of, made_results, terminal


@pytest.fixture(scope="module")
def results() -> Results:
    return made_results()


def test_ours_loses_to_the_reference_and_to_the_best_baseline_each_with_its_sign() -> None:
    ours = cell_of("tc", 90, 90, ratios=(0.9, 0.9), reference="direct")
    run = Results(cells=[ours, cell_of("iptables", 95, 95), cell_of("nftables", 100, 99)])
    assert [(loss.sign, loss.against, round(loss.ratio, 2)) for loss in losses(run, ours)] == [
        ("-", "direct", 0.9),
        ("!", "nftables", 0.90),
    ]


def test_a_baseline_never_loses_nor_does_what_wins() -> None:
    ours = cell_of("stack", 120, ratios=(1.2,), reference="direct")
    baseline = cell_of("iptables", 80, ratios=(0.8,), reference="direct")
    assert all_losses(Results(cells=[ours, baseline])) == []


def test_a_longer_time_is_a_loss_and_a_floor_is_no_reference() -> None:
    ours = cell_of("tc", 3.0, unit="ns", ratios=(0.5,), reference="empty")
    run = Results(cells=[ours, cell_of("iptables", 2.0, unit="ns")])
    assert [(loss.sign, loss.ratio) for loss in losses(run, ours)] == [("!", 1.5)]


def test_changes_are_compared_between_modes_with_different_sources() -> None:
    ours = cell_of("tc", 5, 6, 7, unit="ms", suite="change", where="API")
    run = Results(cells=[ours, cell_of("nftables", 3, unit="ms", suite="change", where="tool")])
    assert [(loss.against, loss.ratio) for loss in losses(run, ours)] == [("nftables", 2.0)]


def test_the_terminal_marks_losing_cells_with_and_without_colours(results: Results) -> None:
    plain = terminal(results)
    line = next(line for line in plain.splitlines() if line.startswith("  tc "))
    assert re.search(r"98\.5k 0\.980 ±0% - ", line)
    assert "losing cells. - slower than the reference, ! worse than the best baseline" in plain
    coloured = terminal(results, colour=True)
    assert re.search(r"\x1b\[1;31m *98\.5k 0\.980 ±0% -", coloured)


def test_the_terminal_is_readable_at_100_columns(results: Results) -> None:
    """Five sizes are too many for one table, and no figure is cut."""
    lines = terminal(results).splitlines()
    assert max(map(len, lines)) <= 100
    assert not [line for line in lines if "…" in line]
    heads = next(line for line in lines if line.endswith("  30,000 Services"))
    assert heads.strip() == "30,000 Services"
    assert any("not measured" in line for line in lines)


def test_the_reference_shows_its_own_spread(results: Results) -> None:
    (first, *_) = tables(results)
    assert [(line.group, line.name) for line in first.lines][:2] == [
        ("1 client", "default"),
        ("1 client", "direct"),
    ]
    default, direct = (line.figures[0] for line in first.lines[:2])
    assert direct
    assert direct.parts == ("100k", "", "±0%")
    assert default
    assert default.parts == ("121k", "1.200", "±0%")


def test_programs_show_what_they_cost_above_an_empty_one(results: Results) -> None:
    (table,) = [table for table in tables(results) if "program" in table.title]
    assert [line.name for line in table.lines] == ["empty", "default"]
    assert table.lines[1].figures[0]
    assert table.lines[1].figures[0].parts[:2] == ("91.8", "+71.4")


def test_csv_has_a_line_for_each_cell_with_its_rounds(results: Results) -> None:
    lines = list(sheets.DictReader(io.StringIO(report.csv(results))))
    assert len(lines) == len(results.cells)
    tc = next(line for line in lines if line["mode"] == "tc")
    assert tc["values"] == "98000 98980"
    assert (tc["rounds"], tc["median"], tc["quarter"], tc["three_quarters"]) == (
        *("2", "98490", "98245", "98735"),
    )
    assert (tc["reference"], tc["ratio"], tc["loses_to"]) == ("direct", "0.98", "direct")
    assert (tc["latency_us_99.9"], tc["cpu_us"]) == ("400", "41.0204")
    assert lines[-1]["latency_us_50"] == ""


def test_markdown_has_all_chapters_and_names_every_losing_cell(results: Results) -> None:
    text = report.markdown(results)
    assert re.findall(r"^## (.*)", text, re.MULTILINE) == [
        *("What matters", "Figures", "Where bpfsvc loses", "Notes", "How it was measured"),
        *("How to repeat it", "Aims"),
    ]
    losing = text.partition("## Where bpfsvc loses")[2].partition("## ")[0]
    lost = len(all_losses(results))
    assert losing.count("\n| ") - 2 == min(10, lost)
    assert f"{lost} entries above are bold" in losing
    assert text.count(" -**") + text.count("!**") == lost
    assert "**98.5k 0.980 ±0% -**" in text
    assert "* ipvs: \\<no> module \\| left out" in text.partition("## Notes")[2]


def test_every_row_of_a_markdown_table_has_as_many_columns(results: Results) -> None:
    blocks = re.findall(r"(?:^\|.*\n)+", report.markdown(results), re.MULTILINE)
    for block in blocks:
        assert len({len(re.findall(r"(?<!\\)\|", line)) for line in block.splitlines()}) == 1


def test_what_matters_is_said_in_ten_lines_at_the_smallest_and_the_largest_size() -> None:
    rates = {"default": 120, "direct": 100, "kube-proxy-iptables": 80, "iptables": 70}
    rates |= {"no-service": 110}
    places = [("pods", kind, "pod") for kind in ("connect", "request", "bulk", "questions")]
    places += [("pods", "connect", "node"), ("edge", "connect", "remote")]
    places += [("edge", "connect", "local")]
    cells = [
        cell_of(
            mode,
            rate,
            suite=suite,
            kind=kind,
            where=where,
            services=services,
            clients=clients,
            ratios=() if mode == "direct" else (rate / 100 * services**-0.01 * clients,),
            cpu=(10_000 / rate,),
        )
        for suite, kind, where in places
        for services in (1, 100, 10_000)
        for clients in (4, 1)
        for mode, rate in rates.items()
    ]
    cells.append(
        cell_of("default", 2.0, unit="ms", suite="change", kind="change", services=1, where="API")
    )
    table = summary(Results(cells=cells))
    assert table
    assert table.heads == ("default", "kube-proxy-iptables")
    assert table.parts.startswith("at 1 Service and at 10,000 Services")
    found = {
        line.name: [figure and figure.parts for figure in line.figures] for line in table.lines
    }
    assert len(found) == 10
    assert found["connections from a pod"] == [("1.200", "1.094"), ("0.800", "0.730")]
    assert found["connections to no Service, agent there"] == [("1.100", "1.003"), None]
    assert found["CPU time of a connection (less is better)"] == [
        *(("0.833", "0.833"), ("1.250", "1.250")),
    ]
    assert found["a change until packets follow, 99 of 100"] == [("2.00 ms", "-"), None]


def test_a_run_without_figures_has_reports_too() -> None:
    nothing = Results()
    assert "<svg" not in report.html(nothing)
    assert report.csv(nothing).count("\n") == 1


@pytest.mark.parametrize(
    ("cells", "words"),
    [
        pytest.param([], "Nothing was compared.", id="no figures"),
        pytest.param([cell_of("tc", 120)], "Nothing was compared.", id="only ours"),
        pytest.param([cell_of("nftables", 1, ratios=(0.9,))], "Nothing was", id="only a baseline"),
        pytest.param(
            [cell_of("tc", 2.0, ratios=(1.2,), reference="direct")], "", id="a reference's"
        ),
        pytest.param([cell_of("tc", 120), cell_of("iptables", 80)], "", id="ours and a baseline"),
    ],
)
def test_there_is_no_loss_where_nothing_was_compared(cells: list[Cell], words: str) -> None:
    """Which is another thing than to have won."""
    results = Results(cells=cells)
    assert (words or "No losing cell.") in terminal(results)
    assert (words or "In no cell of this run.") in report.markdown(results)
    losing = report.html(results).partition('<h2 id="losing">')[2].partition("<h2")[0]
    assert (words or "None in this run.") in losing


def test_a_restless_direct_case_is_warned_of_in_every_report(results: Results) -> None:
    restless = [
        replace(cell, values=(100.0, 150.0)) if cell.mode == "direct" else cell
        for cell in results.cells
    ]
    run = replace(results, cells=restless)
    for text in (terminal(run), report.markdown(run)):
        assert "noise: direct itself moved" in text


def test_drawing_is_imported_when_a_page_is_made_and_not_before() -> None:
    code = "import sys, bpfsvc.devtools.bench.report; sys.exit('matplotlib' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


@pytest.mark.parametrize(
    ("number", "text"),
    [(0, "0"), (0.01234, "0.0123"), (1.5, "1.50"), (99.96, "100"), (12345, "12,345")],
)
def test_numbers_have_three_digits(number: float, text: str) -> None:
    assert digits(number) == text


def test_rates_are_short_and_ratios_differ_visibly_from_one() -> None:
    assert [short(number) for number in (950, 999.9, 12345, 2.5e6, 1e9)] == [
        *("950", "1.00k", "12.3k", "2.50M", "1.00G"),
    ]
    assert [factor(number) for number in (0.997, 1.0, 12.34)] == ["0.997", "1.000", "12.3"]
    assert [span(values) for values in ((1.0,), (90.0, 100.0, 110.0))] == ["", "±5%"]
