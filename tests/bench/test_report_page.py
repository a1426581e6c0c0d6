"""The page of a run: it is whole, needs nothing from elsewhere, and says what other reports say."""

from __future__ import annotations

import re
from dataclasses import replace
from html.parser import HTMLParser

import pytest

from bpfsvc.devtools.bench import report
from bpfsvc.devtools.bench.modes import MODES
from bpfsvc.devtools.bench.report.summary import summary
from bpfsvc.devtools.bench.report.tables import tables
from bpfsvc.devtools.bench.results import Results
from tests.bench.measured import cell_of, made_results, terminal


@pytest.fixture(scope="module")
def results() -> Results:
    return made_results()


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


def test_every_label_of_a_legend_is_within_its_drawing() -> None:
    """With many modes and one panel too, and in a font somewhat wider than the one measured."""
    cells = [cell_of(mode, 100.0, where="pod") for mode in MODES]
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


def test_every_report_explains_how_aims_are_judged(few: Results, page: str) -> None:
    for text in (terminal(few), report.markdown(few), page):
        assert "compared by the median of the ratios of their rounds" in " ".join(text.split())
