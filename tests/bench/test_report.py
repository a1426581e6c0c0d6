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
from bpfsvc.bench.modes import MODES
from bpfsvc.bench.report.losses import all_losses, losses
from bpfsvc.bench.report.summary import summary
from bpfsvc.bench.report.tables import tables
from bpfsvc.bench.report.text import digits, factor, short, span
from bpfsvc.bench.results import Cell, Results

_RATES = {"direct": 100.0, "iptables": 80.0, "nftables": 95.0, "tc": 98.0, "default": 120.0}


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
    measured = (
        ("frames", "datagrams", "remote", "ns", {"drop": 500.0, "iptables": 1500.0, "xdp": 800.0}),
        ("programs", "established, TCP, ingress", "", "ns", {"empty": 20.0, "default": 90.0}),
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
        for suite, kind, where, unit, modes in measured
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


def test_ours_loses_to_the_reference_and_to_the_best_baseline_each_with_its_sign() -> None:
    ours = _cell("tc", 90, 90, ratios=(0.9, 0.9), reference="direct")
    run = Results(cells=[ours, _cell("iptables", 95, 95), _cell("nftables", 100, 99)])
    assert [(loss.sign, loss.against, round(loss.ratio, 2)) for loss in losses(run, ours)] == [
        ("-", "direct", 0.9),
        ("!", "nftables", 0.90),
    ]


def test_a_baseline_never_loses_nor_does_what_wins() -> None:
    ours = _cell("stack", 120, ratios=(1.2,), reference="direct")
    baseline = _cell("iptables", 80, ratios=(0.8,), reference="direct")
    assert all_losses(Results(cells=[ours, baseline])) == []


def test_a_longer_time_is_a_loss_and_a_floor_is_no_reference() -> None:
    ours = _cell("tc", 3.0, unit="ns", ratios=(0.5,), reference="empty")
    run = Results(cells=[ours, _cell("iptables", 2.0, unit="ns")])
    assert [(loss.sign, loss.ratio) for loss in losses(run, ours)] == [("!", 1.5)]


def test_changes_are_compared_between_modes_with_different_sources() -> None:
    ours = _cell("tc", 5, 6, 7, unit="ms", suite="change", where="API")
    run = Results(cells=[ours, _cell("nftables", 3, unit="ms", suite="change", where="tool")])
    assert [(loss.against, loss.ratio) for loss in losses(run, ours)] == [("nftables", 2.0)]


def test_the_terminal_marks_losing_cells_with_and_without_colours(results: Results) -> None:
    plain = _terminal(results)
    line = next(line for line in plain.splitlines() if line.startswith("  tc "))
    assert re.search(r"98\.5k 0\.980 ±0% - ", line)
    assert "losing cells. - slower than the reference, ! worse than the best baseline" in plain
    coloured = _terminal(results, colour=True)
    assert re.search(r"\x1b\[1;31m *98\.5k 0\.980 ±0% -", coloured)


def test_the_terminal_is_readable_at_100_columns(results: Results) -> None:
    """Five sizes are too many for one table, and no figure is cut."""
    lines = _terminal(results).splitlines()
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
    for name in ("plots", "tables", "losing", "notes", "method", "again", "aims"):
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


_OPENING = "New connections from a pod to a Service: bpfsvc as it comes, kube-proxy, and direct"


def test_the_page_opens_with_bpfsvc_as_it_comes_beside_kube_proxy_and_direct(page: str) -> None:
    """At the smallest and the largest size, with what each is of direct; the aims come last."""
    head = page.partition("<nav>")[0]
    assert re.findall(r"<figcaption><strong>(.*?)</strong>", head) == [_OPENING]
    texts = re.findall(r"<text [^>]*>(.*?)</text>", head.replace("\n", ""))
    assert [text for text in texts if text.endswith(("Service", "Services"))] == [
        *("1 Service", "30,000 Services"),
    ]
    for text in ("default", "nftables", "iptables", "direct"):
        assert texts.count(text) == 2
    assert texts.count("121k  (1.200 of direct)") == 2
    assert page.rindex("<h2") == page.index('<h2 id="aims">')


def test_a_run_without_bpfsvc_as_it_comes_opens_with_no_picture(few: Results) -> None:
    without = replace(few, cells=[cell for cell in few.cells if cell.mode != "default"])
    assert summary(without) is None
    assert _OPENING not in report.html(without)


def test_what_matters_is_said_in_ten_lines_at_the_smallest_and_the_largest_size() -> None:
    rates = {"default": 120, "direct": 100, "kube-proxy-iptables": 80, "iptables": 70}
    rates |= {"no-service": 110}
    places = [("pods", kind, "pod") for kind in ("connect", "request", "bulk", "questions")]
    places += [("pods", "connect", "node"), ("edge", "connect", "remote")]
    places += [("edge", "connect", "local")]
    cells = [
        _cell(
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
        _cell("default", 2.0, unit="ms", suite="change", kind="change", services=1, where="API")
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


def test_every_label_of_a_legend_is_within_its_drawing() -> None:
    """With many modes and one panel too, and in a font somewhat wider than the one measured."""
    cells = [_cell(mode, 100.0, where="pod") for mode in MODES]
    drawn = report.html(Results(cells=cells))
    seen = set()
    for svg in re.findall(r"<svg.*?</svg>", drawn, re.DOTALL):
        width = float(re.search(r'viewBox="0 0 ([\d.]+)', svg)[1])  # type: ignore[index]
        legend = svg.partition("legend_")[2]
        for x, text in re.findall(r'<text [^>]*?x="([\d.-]+)"[^>]*>([^<]+)</text>', legend):
            assert 0 <= float(x) <= width - 0.6 * 9 * len(text)
            seen.add(text)
    assert seen >= {*MODES}


def test_the_machines_names_are_escaped_on_the_page(page: str) -> None:
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
        pytest.param([_cell("tc", 120)], "Nothing was compared.", id="only ours"),
        pytest.param([_cell("nftables", 1, ratios=(0.9,))], "Nothing was", id="only a baseline"),
        pytest.param([_cell("tc", 2.0, ratios=(1.2,), reference="direct")], "", id="a reference's"),
        pytest.param([_cell("tc", 120), _cell("iptables", 80)], "", id="ours and a baseline"),
    ],
)
def test_there_is_no_loss_where_nothing_was_compared(cells: list[Cell], words: str) -> None:
    """Which is another thing than to have won."""
    results = Results(cells=cells)
    assert (words or "No losing cell.") in _terminal(results)
    assert (words or "In no cell of this run.") in report.markdown(results)
    losing = report.html(results).partition('<h2 id="losing">')[2].partition("<h2")[0]
    assert (words or "None in this run.") in losing


def test_every_report_explains_how_aims_are_judged(few: Results, page: str) -> None:
    for text in (_terminal(few), report.markdown(few), page):
        assert "compared by the median of the ratios of their rounds" in " ".join(text.split())


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


def test_rates_are_short_and_ratios_differ_visibly_from_one() -> None:
    assert [short(number) for number in (950, 999.9, 12345, 2.5e6, 1e9)] == [
        *("950", "1.00k", "12.3k", "2.50M", "1.00G"),
    ]
    assert [factor(number) for number in (0.997, 1.0, 12.34)] == ["0.997", "1.000", "12.3"]
    assert [span(values) for values in ((1.0,), (90.0, 100.0, 110.0))] == ["", "±5%"]
