"""The reports of a run agree with each other, hide no loss, and need nothing from elsewhere."""

from __future__ import annotations

import csv as sheets
import io
import re
import subprocess
import sys
from html.parser import HTMLParser
from typing import Any

import msgspec
import pytest

from bpfsvc.devtools.bench import report
from bpfsvc.devtools.bench.report.summary import summary
from bpfsvc.devtools.bench.report.tables import all_losses, losses, tables
from bpfsvc.devtools.bench.report.text import digits, factor, short, span
from bpfsvc.devtools.bench.results import Cell, Results
from tests.bench.measured import cell_of, made_results, terminal


@pytest.fixture(scope="module")
def results() -> Results:
    return made_results()


@pytest.fixture(scope="module")
def page(results: Results) -> str:
    return report.html(results)


def test_bpfsvc_loses_to_the_reference_and_to_the_best_baseline_each_with_its_sign() -> None:
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


def test_a_longer_time_is_a_loss_and_changes_are_compared_whatever_their_origin() -> None:
    fields: dict[str, Any] = {"suite": "change", "kind": "change", "unit": "ms"}
    ours = cell_of("tc", 5, 6, 7, where="json", **fields)
    run = Results(cells=[ours, cell_of("kube-proxy-nftables", 3, where="API", **fields)])
    assert [(loss.sign, loss.ratio) for loss in losses(run, ours)] == [("!", 2.0)]


def test_the_terminal_marks_losing_cells_with_and_without_colours(results: Results) -> None:
    plain = terminal(results)
    row = next(line for line in plain.splitlines() if line.startswith("  tc "))
    assert re.search(r"98\.5k 0\.980 ±0% - ", row)
    assert "losing cells. - slower than the reference, ! worse than the best baseline" in plain
    assert re.search(r"\x1b\[1;31m *98\.5k 0\.980 ±0% -", terminal(results, colour=True))


def test_the_terminal_is_readable_at_100_columns(results: Results) -> None:
    """Five sizes are too many for one table, and no figure is cut."""
    lines = terminal(results).splitlines()
    assert max(map(len, lines)) <= 100
    assert not [line for line in lines if "…" in line]
    assert any(line.strip() == "30,000 Services" for line in lines)


def test_the_reference_shows_its_own_spread(results: Results) -> None:
    (first, *_) = tables(results)
    assert [(row.group, row.name) for row in first.rows][:2] == [
        ("1 client", "default"),
        ("1 client", "direct"),
    ]
    assert [row.figures[0] and row.figures[0].parts for row in first.rows[:2]] == [
        ("121k", "1.200", "±0%"),
        ("100k", "", "±0%"),
    ]


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
    for table in re.findall(r"(?:^\|.*\n)+", text, re.MULTILINE):
        assert len({len(re.findall(r"(?<!\\)\|", line)) for line in table.splitlines()}) == 1


def _matters(*cells: Cell) -> dict[str, list[tuple[str, ...] | None]]:
    table = summary(Results(cells=[*cells]))
    assert table
    return {row.name: [figure and figure.parts for figure in row.figures] for row in table.rows}


def test_what_matters_is_said_in_ten_rows_at_the_smallest_and_the_largest_size() -> None:
    """A change is the real kube-proxy's from the API event, never a tool's."""
    rates = {"default": 120, "direct": 100, "kube-proxy-iptables": 80, "iptables": 70}
    rates |= {"no-service": 110}
    kinds = [("pods", kind, "pod") for kind in ("connect", "request", "bulk", "questions")]
    kinds += [("pods", "connect", "node"), ("edge", "connect", "remote")]
    kinds += [("edge", "connect", "local")]
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
        for suite, kind, where in kinds
        for services in (1, 100, 10_000)
        for clients in (4, 1)
        for mode, rate in rates.items()
    ]
    change = cell_of("default", 2.0, unit="ms", suite="change", kind="change", where="API")
    slow = change.having(mode="kube-proxy-iptables", values=(700.0,), services=10_000)
    tool = change.having(mode="iptables", values=(3.0,), where="tool")
    rows = _matters(*cells, change, slow, tool)
    assert len(rows) == 10
    assert rows["connections from a pod"] == [("1.200", "1.094"), ("0.800", "0.730")]
    assert rows["connections to no Service, agent there"] == [("1.100", "1.003"), None]
    assert rows["CPU time of a connection (less is better)"] == [
        *(("0.833", "0.833"), ("1.250", "1.250")),
    ]
    assert rows["a change until packets follow, 99 of 100"] == [
        *(("2.00 ms", "-"), ("-", "700 ms")),
    ]


class _Page(HTMLParser):
    """Looks for what is not closed and for what a browser would load."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.names: list[str] = []
        self.loads: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag not in ("meta", "br"):
            self.open.append(tag)
        self.handle_startendtag(tag, attrs)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = {name: value or "" for name, value in attrs}
        self.names += [given["id"]] if "id" in given else []
        links = [given[name] for name in ("src", "href", "xlink:href") if name in given]
        self.loads += [link for link in links if not link.startswith("#")]
        if tag in ("script", "link", "img", "iframe", "object"):
            self.loads.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


def test_the_page_is_well_formed_and_loads_nothing(page: str) -> None:
    read = _Page(page)
    assert read.open == []
    assert read.loads == []
    assert not re.search(r"https?://|@import", page)
    assert set(re.findall(r"url\((.)", page)) <= {"#"}
    assert len(read.names) == len(set(read.names))


def test_the_page_has_all_sections_tables_and_plots(page: str, results: Results) -> None:
    for name in ("plots", "tables", "losing", "notes", "method", "again", "aims"):
        assert f'<h2 id="{name}">' in page
        assert f'href="#{name}"' in page
    for table in tables(results):
        assert f"<h3>{table.title}</h3>" in page
    captions = re.findall(r"<figcaption><strong>(.*?)</strong>", page)
    assert captions == [
        "New connections from a pod to a Service: bpfsvc as it comes, kube-proxy, and direct",
        "To a backend on the other node: connect, request, close, from a pod: against direct",
        "From outside to a NodePort: connect, request, close, backend on another node:"
        " against direct",
        "From a change to changed packets",
    ]
    assert page.count("<svg") == len(captions)
    head = page.partition("<nav>")[0]
    texts = re.findall(r"<text [^>]*>(.*?)</text>", head.replace("\n", ""))
    assert texts.count("121k  (1.200 of direct)") == 2  # at the smallest and the largest size
    assert "&lt;b&gt;fast &amp; furious&lt;/b&gt;" in page
    assert "<b>fast" not in page


def test_reports_of_the_same_results_are_the_same(results: Results, page: str) -> None:
    """Also of those that were written and read, as the documentation's are."""
    again = Results.from_json(results.to_json())
    assert report.html(again) == page
    assert report.markdown(again) == report.markdown(results)
    assert report.csv(again) == report.csv(results)


def test_a_run_without_bpfsvc_as_it_comes_or_without_figures_has_reports_too() -> None:
    other = Results(cells=[cell_of("iptables", 80, ratios=(0.8,), reference="direct")])
    assert summary(other) is None
    assert report.html(other).count("<svg") == 1
    assert "<svg" not in report.html(Results())
    assert report.csv(Results()).count("\n") == 1


@pytest.mark.parametrize(
    ("cells", "compared"),
    [
        pytest.param([], False, id="no figures"),
        pytest.param([cell_of("tc", 120)], False, id="only bpfsvc"),
        pytest.param([cell_of("nftables", 1, ratios=(0.9,))], False, id="only a baseline"),
        pytest.param([cell_of("tc", 120), cell_of("iptables", 80)], True, id="both"),
    ],
)
def test_there_is_no_loss_where_nothing_was_compared(cells: list[Cell], compared: bool) -> None:
    """Which is another thing than to have won."""
    results = Results(cells=cells)
    nothing = "Nothing was compared."
    assert ("No losing cell." if compared else nothing) in terminal(results)
    assert ("In no cell of this run." if compared else nothing) in report.markdown(results)
    losing = report.html(results).partition('<h2 id="losing">')[2].partition("<h2")[0]
    assert ("None in this run." if compared else nothing) in losing


def test_every_report_warns_of_a_restless_direct_case_and_says_how_aims_are_judged(
    results: Results,
) -> None:
    cells = [
        cell.having(values=(100.0, 150.0)) if cell.mode == "direct" else cell
        for cell in results.cells
    ]
    run = msgspec.structs.replace(results, cells=cells)
    for text in (terminal(run), report.markdown(run), report.html(run)):
        assert "noise: direct itself moved" in text
        assert "compared by the median of the ratios of their rounds" in " ".join(text.split())


def test_drawing_is_imported_when_a_page_is_made_and_not_before() -> None:
    code = "import sys, bpfsvc.devtools.bench.report; sys.exit('matplotlib' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_numbers_have_three_digits_and_ratios_differ_visibly_from_one() -> None:
    assert [digits(number) for number in (0, 0.01234, 1.5, 99.96, 12345)] == [
        *("0", "0.0123", "1.50", "100", "12,345"),
    ]
    assert [short(number) for number in (950, 999.9, 12345, 2.5e6, 1e9)] == [
        *("950", "1.00k", "12.3k", "2.50M", "1.00G"),
    ]
    assert [factor(number) for number in (0.997, 1.0, 12.34)] == ["0.997", "1.000", "12.3"]
    assert [span(values) for values in ((1.0,), (90.0, 100.0, 110.0))] == ["", "±5%"]
