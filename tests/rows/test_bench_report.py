"""The reports of a run agree with each other, hide no loss, and need nothing from elsewhere."""

from __future__ import annotations

import csv as sheets
import io
import re
import subprocess
import sys
from dataclasses import replace
from html.parser import HTMLParser

import pytest
from rich.console import Console

from bpfsvc.bench import report
from bpfsvc.bench.report.losses import all_losses, losses
from bpfsvc.bench.report.numbers import digits, factor, short, span
from bpfsvc.bench.report.tables import tables
from bpfsvc.bench.results import Cell, Results

_RATES = {"direct": 100.0, "iptables": 80.0, "nftables": 95.0, "tc": 98.0, "fast": 120.0}


def _traffic(suite: str, kind: str, where: str, services: int, clients: int) -> list[Cell]:
    bulk = kind == "bulk"
    return [
        Cell(
            suite=suite,
            kind=kind,
            mode=mode,
            services=services,
            clients=clients,
            where=where,
            unit="bytes per second" if bulk else "per second",
            values=(rate * 1000, rate * 1010),
            ratios=() if mode == "direct" else (rate / 100, rate / 100),
            reference="" if mode == "direct" else "direct",
            cpu=(4000 / rate, 4040 / rate),
            latency={} if bulk else {"50": 10.0, "90": 12.0, "99": 30.0, "99.9": 400.0},
            histogram=() if bulk else ((8.0, 5), (16.0, 90), (32.0, 5)),
        )
        for mode, rate in _RATES.items()
    ]


def _others() -> list[Cell]:
    told = (
        ("frames", "datagrams", "remote", "ns", {"drop": 500.0, "iptables": 1500.0, "xdp": 800.0}),
        ("programs", "established, TCP, ingress", "", "ns", {"empty": 20.0, "tc": 90.0}),
        ("change", "change", "", "ms", {"iptables": 600.0, "tc": 4.0}),
        ("start", "first sync", "", "s", {"iptables": 1.5, "tc": 2.5}),
        ("memory", "agent, RSS", "", "MB", {"tc": 60.0}),
        ("churn", "CPU, busy", "", "%", {"tc": 30.0}),
    )
    return [
        Cell(
            suite=suite,
            kind=kind,
            mode=mode,
            services=10_000,
            where=where,
            unit=unit,
            values=(value, value * 1.02, value * 1.04),
        )
        for suite, kind, where, unit, modes in told
        for mode, value in modes.items()
    ]


@pytest.fixture(scope="module")
def results() -> Results:
    return Results(
        machine={"kernel": "6.12.1", "processor": "<b>fast & furious</b>", "cores": 2},
        scale={"rounds": 2},
        cells=[
            *(
                cell
                for services in (1, 100, 1000, 10_000, 30_000)
                for clients in (1, 4)
                for kind in ("connect", "bulk")
                for cell in _traffic("pods", kind, "pod", services, clients)
            ),
            *_traffic("edge", "connect", "remote", 1, 1),
            *_others(),
        ],
        notes=["ipvs: <no> module | left out"],
        seconds=75.0,
    )


def _terminal(results: Results, *, colour: bool = False, width: int = 100) -> str:
    console = Console(
        file=io.StringIO(),
        width=width,
        force_terminal=colour,
        color_system="standard" if colour else None,
    )
    report.terminal(results, console)
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


def _cell(mode: str, *values: float, unit: str = "per second", **fields: object) -> Cell:
    made = Cell(suite="pods", kind="connect", mode=mode, services=1, unit=unit, values=values)
    return replace(made, **fields)  # type: ignore[arg-type]


def test_ours_loses_to_the_reference_and_to_the_best_rival_each_with_its_sign() -> None:
    ours = _cell("tc", 90, 90, ratios=(0.9, 0.9), reference="direct")
    run = Results(cells=[ours, _cell("iptables", 95, 95), _cell("nftables", 100, 99)])
    assert [(loss.sign, loss.against, round(loss.ratio, 2)) for loss in losses(run, ours)] == [
        ("-", "direct", 0.9),
        ("!", "nftables", 0.90),
    ]


def test_a_rival_never_loses_nor_does_what_wins() -> None:
    ours = _cell("fast", 120, ratios=(1.2,), reference="direct")
    rival = _cell("iptables", 80, ratios=(0.8,), reference="direct")
    assert all_losses(Results(cells=[ours, rival])) == []


def test_of_a_time_more_is_a_loss_and_a_floor_is_no_reference() -> None:
    ours = _cell("tc", 3.0, unit="ns", ratios=(0.5,), reference="empty")
    run = Results(cells=[ours, _cell("iptables", 2.0, unit="ns")])
    assert [(loss.sign, loss.ratio) for loss in losses(run, ours)] == [("!", 1.5)]


def test_changes_are_compared_whoever_tells_of_them() -> None:
    ours = _cell("tc", 5, 6, 7, unit="ms", suite="change", where="API")
    run = Results(cells=[ours, _cell("nftables", 3, unit="ms", suite="change", where="tool")])
    assert [(loss.against, loss.ratio) for loss in losses(run, ours)] == [("nftables", 2.0)]


def test_the_terminal_marks_losing_cells_with_and_without_colours(results: Results) -> None:
    plain = _terminal(results)
    line = next(line for line in plain.splitlines() if line.startswith("  tc "))
    assert re.search(r"98\.5k 0\.980 ±0% - ", line)
    assert "losing cells. - slower than the reference, ! worse than the best rival" in plain
    coloured = _terminal(results, colour=True)
    assert re.search(r"\x1b\[1;31m *98\.5k 0\.980 ±0% -", coloured)


def test_the_terminal_is_readable_at_100_columns(results: Results) -> None:
    """Five sizes are too many for one table, and no figure is cut."""
    lines = _terminal(results).splitlines()
    assert max(map(len, lines)) <= 100
    assert not [line for line in lines if "…" in line]
    heads = next(line for line in lines if "30,000 Services" in line)
    assert heads.strip() == "30,000 Services"
    assert any("not measured" in line for line in lines)


def test_the_reference_shows_its_own_spread(results: Results) -> None:
    (first, *_) = tables(results)
    assert [(line.group, line.name) for line in first.lines][:2] == [
        ("1 client", "direct"),
        ("1 client", "iptables"),
    ]
    direct, iptables = (line.figures[0] for line in first.lines[:2])
    assert direct
    assert direct.parts == ("100k", "", "±0%")
    assert iptables
    assert iptables.parts == ("80.4k", "0.800", "±0%")


def test_programs_show_what_they_cost_above_an_empty_one(results: Results) -> None:
    (table,) = [table for table in tables(results) if "program" in table.title]
    assert [line.name for line in table.lines] == ["empty", "tc"]
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
    text = report.markdown(results, "Most of it is spent in `connect`.")
    assert re.findall(r"^## (.*)", text, re.MULTILINE) == [
        *("Aims", "Where bpfsvc loses", "Figures", "Notes"),
        *("How it was measured", "How to repeat it"),
    ]
    assert "Most of it is spent in `connect`." in text
    losing = text.partition("## Where bpfsvc loses")[2].partition("## ")[0]
    assert losing.count("\n| ") - 2 == len(all_losses(results))
    assert "**98.5k 0.980 ±0% -**" in text
    assert "* ipvs: \\<no> module \\| left out" in text.partition("## Notes")[2]


def test_every_row_of_a_markdown_table_has_as_many_columns(results: Results) -> None:
    blocks = re.findall(r"(?:^\|.*\n)+", report.markdown(results), re.MULTILINE)
    for block in blocks:
        assert len({len(re.findall(r"(?<!\\)\|", line)) for line in block.splitlines()}) == 1


class _Page(HTMLParser):
    """Looks for what is not closed and for what a browser would load."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.names: list[str] = []
        self.loads: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag not in ("meta", "br"):
            self.open.append(tag)
        self._look(tag, attrs)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self._look(tag, attrs)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def _look(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = {name: value or "" for name, value in attrs}
        if "id" in given:
            self.names.append(given["id"])
        links = [given[name] for name in ("src", "href", "xlink:href") if name in given]
        self.loads += [link for link in links if not link.startswith("#")]
        if tag in ("script", "link", "img", "iframe", "object"):
            self.loads.append(tag)


@pytest.fixture(scope="module")
def few(results: Results) -> Results:
    """A part of them, as drawing takes time."""
    return replace(
        results,
        cells=[
            cell
            for cell in results.cells
            if cell.suite not in ("pods", "edge")
            or (cell.suite, cell.clients, cell.kind) == ("pods", 1, "connect")
        ],
    )


@pytest.fixture(scope="module")
def page(few: Results) -> str:
    return report.html(few)


def test_the_page_loads_nothing_and_is_well_formed(page: str) -> None:
    read = _Page()
    read.feed(page)
    assert read.open == []
    assert read.loads == []
    assert not re.search(r"https?://|@import", page)
    assert set(re.findall(r"url\((.)", page)) <= {"#"}
    assert len(read.names) == len(set(read.names))


def test_the_page_has_all_sections_and_plots(page: str, few: Results) -> None:
    for name in ("aims", "losing", "plots", "tables", "notes", "method", "again"):
        assert f'<h2 id="{name}">' in page
        assert f'href="#{name}"' in page
    for table in tables(few):
        assert f"<h3>{table.title}</h3>" in page
    captions = re.findall(r"<figcaption><strong>(.*?)</strong>", page)
    assert page.count("<svg") == len(captions)
    start = "To a backend on the other node: connect, request, close, from a pod: "
    assert [title.removeprefix(start) for title in captions if title.startswith(start)] == [
        *("against direct", "rate", "CPU time", "latency", "distribution of latency"),
    ]
    assert {
        "Cost of a program for a packet, 10,000 Services",
        "From a change to changed packets",
    } <= {*captions}


def test_what_the_machine_calls_itself_is_text_on_the_page(page: str) -> None:
    assert "<b>fast" not in page
    assert "&lt;b&gt;fast &amp; furious&lt;/b&gt;" in page


def test_reports_of_the_same_results_are_the_same(few: Results, page: str) -> None:
    """Also of those that were written and read, as the documentation's are."""
    again = Results.from_json(few.to_json())
    assert report.html(again) == page
    assert report.markdown(again) == report.markdown(few)
    assert report.csv(again) == report.csv(few)


def test_a_run_without_figures_has_reports_too() -> None:
    nothing = Results()
    assert "<svg" not in report.html(nothing)
    assert report.csv(nothing).count("\n") == 1


@pytest.mark.parametrize(
    ("cells", "words"),
    [
        pytest.param([], "Nothing was compared.", id="no figures"),
        pytest.param([_cell("tc", 120)], "Nothing was compared.", id="nobody else's"),
        pytest.param([_cell("nftables", 1, ratios=(0.9,))], "Nothing was", id="a rival's only"),
        pytest.param([_cell("tc", 2.0, ratios=(1.2,), reference="direct")], "", id="a reference's"),
        pytest.param([_cell("tc", 120), _cell("iptables", 80)], "", id="ours and a rival's"),
    ],
)
def test_nobody_loses_where_nothing_was_compared(cells: list[Cell], words: str) -> None:
    """Which is another thing than to have won."""
    results = Results(cells=cells)
    assert (words or "No losing cell.") in _terminal(results)
    assert (words or "In no cell of this run.") in report.markdown(results)
    losing = report.html(results).partition('<h2 id="losing">')[2].partition("<h2")[0]
    assert (words or "None in this run.") in losing


def test_every_report_says_how_the_best_path_is_judged(few: Results, page: str) -> None:
    for text in (_terminal(few), report.markdown(few), page):
        assert "chosen by each half of the rounds and judged by the other half" in " ".join(
            text.split()
        )


def test_a_restless_direct_case_is_warned_of_in_every_report(results: Results) -> None:
    restless = [
        replace(cell, values=(100.0, 150.0)) if cell.mode == "direct" else cell
        for cell in results.cells
    ]
    run = replace(results, cells=restless)
    for text in (_terminal(run), report.markdown(run)):
        assert "noise: direct itself moved" in text


def test_drawing_is_imported_when_a_page_is_made_and_not_before() -> None:
    code = "import sys, bpfsvc.bench.report; sys.exit('matplotlib' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


@pytest.mark.parametrize(
    ("number", "text"),
    [(0, "0"), (0.01234, "0.0123"), (1.5, "1.50"), (99.96, "100"), (12345, "12,345")],
)
def test_numbers_have_three_digits(number: float, text: str) -> None:
    assert digits(number) == text


def test_rates_are_short_and_ratios_exact_enough_to_tell_from_one() -> None:
    assert [short(number) for number in (950, 999.9, 12345, 2.5e6, 1e9)] == [
        *("950", "1.00k", "12.3k", "2.50M", "1.00G"),
    ]
    assert [factor(number) for number in (0.997, 1.0, 12.34)] == ["0.997", "1.000", "12.3"]
    assert [span(values) for values in ((1.0,), (90.0, 100.0, 110.0))] == ["", "±5%"]
