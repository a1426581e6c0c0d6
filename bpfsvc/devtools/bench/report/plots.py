"""The plots of the page: horizontal bars, a panel for each size of cluster, a bar for each mode."""

from __future__ import annotations

import io
import re
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

from matplotlib import rc_context
from matplotlib.figure import Figure

from bpfsvc.devtools.bench.figures import Spread, clients_text, services_text
from bpfsvc.devtools.bench.modes import AGENTS, DEFAULT, DIRECT
from bpfsvc.devtools.bench.report.summary import compared_modes, outer_sizes
from bpfsvc.devtools.bench.report.tables import SUITES, TRAFFIC, title
from bpfsvc.devtools.bench.report.text import digits, factor, short
from bpfsvc.devtools.bench.results import Cell, Results, rank

_SETTINGS: dict[Any, Any] = {
    # The same figures give the same bytes, and text stays text.
    "svg.hashsalt": "bpfsvc",
    "svg.fonttype": "none",
    "font.size": 9.0,
    "axes.titlesize": 10.0,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.axisbelow": True,
}
# People with colour blindness can tell these colours apart (after Okabe and Ito).
_OURS, _DIRECT, _OTHER = "#009e73", "#000000", "#d55e00"


class Plot(NamedTuple):
    """A drawing for a page: a title, an explanation, and SVG that loads nothing."""

    title: str
    about: str
    svg: str


def plots(results: Results) -> list[Plot]:
    """Return all plots there are figures for, in the order of the page."""
    with rc_context(_SETTINGS):
        return [*_opening(results), *_traffic(results), *_changes(results)]


def _opening(results: Results) -> Iterator[Plot]:
    """Draw connections of a pod: bpfsvc as it comes, kube-proxy, and direct."""
    modes, sizes = [*compared_modes(results), DIRECT], outer_sizes(results)
    wanted = {"suite": "pods", "kind": "connect", "where": "pod"}
    measured = (
        results.fewest_clients(mode=mode, services=size, **wanted)
        for size in sizes
        for mode in modes
    )
    cells = [cell for cell in measured if cell]
    if not any(cell.mode == DEFAULT for cell in cells):
        return

    def text(cell: Cell) -> str:
        ratio = "" if cell.ratio is None else f"  ({factor(cell.ratio)} of direct)"
        return f"{short(cell.median)}{ratio}"

    yield Plot(
        "New connections from a pod to a Service: bpfsvc as it comes, kube-proxy, and direct",
        f"Connect, request, close, with {clients_text(cells[0].clients)}. Behind each bar: its "
        "rate, and how much of direct's rate that is; more is better.",
        _bars(cells, lambda cell: cell.spread, text, "connections a second", "p-"),
    )


def _traffic(results: Results) -> Iterator[Plot]:
    """Draw ratios to the reference for each kind of traffic, with the fewest clients."""
    cells = [cell for cell in results.find() if cell.suite in TRAFFIC and cell.ratios]
    for number, name in enumerate(dict.fromkeys(map(title, cells))):
        alike = [cell for cell in cells if title(cell) == name]
        fewest = min(cell.clients for cell in alike)
        alike = [cell for cell in alike if cell.clients == fewest]
        reference = alike[0].reference
        svg = _bars(
            alike,
            lambda cell: Spread.of(cell.ratios),
            lambda cell: f"{factor(cell.ratio or 0)}  ({short(cell.median)})",
            f"ratio to {reference}",
            f"t{number}-",
            line=1.0,
        )
        about = (
            f"{clients_text(fewest)}. Medians of the ratios of rounds, with quartiles, and rates: "
            f"{alike[0].unit}; right of the line is faster."
        )
        yield Plot(f"{name}: against {reference}", about, svg)


def _changes(results: Results) -> Iterator[Plot]:
    if cells := results.find(suite="change"):
        yield Plot(
            SUITES["change"],
            "From the change of an EndpointSlice to packets that go to the new backend: medians "
            "with quartiles, and what 99 of 100 take at most; less is better.",
            _bars(
                cells,
                lambda cell: cell.spread,
                lambda cell: f"{digits(cell.median)}  ({digits(cell.tail(99))})",
                cells[0].unit,
                "c-",
            ),
        )


def _bars(
    cells: Sequence[Cell],
    value: Callable[[Cell], Spread],
    text: Callable[[Cell], str],
    unit: str,
    prefix: str,
    line: float | None = None,
) -> str:
    """Return the SVG; ``prefix`` makes its names unique on a page, ``line``: where to draw one."""

    def name(cell: Cell) -> str:
        return f"{cell.mode} ({cell.where})" if cell.suite == "change" else cell.mode

    names = sorted({name(cell) for cell in cells}, key=rank)
    sizes = sorted({cell.services for cell in cells})
    height = 0.9 + 0.3 * len(names)
    figure = Figure(figsize=(4.8 * len(sizes) + 1.5, height), layout="constrained")
    panels = figure.subplots(1, len(sizes), squeeze=False, sharey=True).flat
    for panel, size in zip(panels, sizes, strict=True):
        shown = [cell for cell in cells if cell.services == size]
        for cell in shown:
            spread, row = value(cell), -names.index(name(cell))
            colour = _OURS if cell.mode in AGENTS else _DIRECT if cell.mode == DIRECT else _OTHER
            panel.barh(row, spread.median, color=colour, height=0.7)
            panel.hlines(row, spread.quarter, spread.three_quarters, color="#888888")
            end = max(spread.median, spread.three_quarters)
            panel.annotate(
                text(cell), (end, row), xytext=(4, 0), textcoords="offset points", va="center"
            )
        # Room for the text behind the bars.
        panel.set_xlim(0, 1.6 * max(value(cell).three_quarters for cell in shown))
        panel.set_yticks([-row for row in range(len(names))], names)
        panel.set_title(services_text(size))
        panel.set_xlabel(unit)
        if line is not None:
            panel.axvline(line, color="#000000", linewidth=1)
    return _svg(figure, prefix)


def _svg(figure: Figure, prefix: str) -> str:
    written = io.StringIO()
    figure.savefig(written, format="svg", metadata={"Date": None})
    svg = written.getvalue()
    body = re.sub(r"\s*<metadata>.*?</metadata>", "", svg[svg.index("<svg") :], flags=re.DOTALL)
    body = re.sub(r' xmlns(:\w+)?="[^"]*"', "", body, count=2)
    return re.sub(r'(\bid="|url\(#|href="#)', rf"\g<1>{prefix}", body)
