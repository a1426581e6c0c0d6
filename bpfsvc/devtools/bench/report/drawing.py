"""How plots are drawn: the looks of modes, panels, lines, bars, legends, and SVG.

Colours are ones that people with colour blindness can tell apart (after Okabe and Ito), and each
mode has a mark of its own as well; lines of bpfsvc are solid, others broken. Text stays text in the
drawing. The same figures give the same bytes: no date, and names that are counted.
"""

from __future__ import annotations

import io
import re
from collections.abc import Callable, Sequence
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter

from bpfsvc.devtools.bench.figures import Spread
from bpfsvc.devtools.bench.modes import OURS
from bpfsvc.devtools.bench.report.tables import about, name
from bpfsvc.devtools.bench.report.text import digits, short
from bpfsvc.devtools.bench.results import Cell, rank

SETTINGS: dict[Any, Any] = {
    "svg.hashsalt": "bpfsvc",
    "svg.fonttype": "none",
    "font.size": 9.0,
    "font.family": "sans-serif",
    "axes.titlesize": 10.0,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": "#dddddd",
    "grid.linewidth": 0.6,
    "lines.markersize": 5.0,
}
SHORT = FuncFormatter(lambda value, _: short(value, trim=True))
_LOOKS = {
    "default": ("#009e73", "D", "-"),
    "direct": ("#000000", "|", ":"),
    "kube-proxy-nftables": ("#cc79a7", "^", "--"),
    "kube-proxy-iptables": ("#d55e00", "v", "--"),
    "kube-proxy-ipvs": ("#888888", ">", "--"),
    "nftables": ("#cc79a7", "2", "-."),
    "iptables": ("#d55e00", "1", "-."),
    "iptables-nft": ("#e69f00", "<", "-."),
    "ipvs": ("#888888", "4", "-."),
    "tc": ("#56b4e9", "o", "-"),
    "stack": ("#0072b2", "s", "-"),
    "stack-tc": ("#7f5a2b", "X", "-"),
    "established": ("#117733", "h", "-"),
    "xdp": ("#44217a", "P", "-"),
    "no-service": ("#666666", "d", ":"),
    "no-service-stack": ("#aaaaaa", "p", ":"),
}
"""Colour, mark and line of each mode."""
_NARROWEST = 6.5  # inches
_WIDER = 1.15
"""How much wider than the font that was measured the one of a browser may be."""
_OTHER = ("#666666", ".", "-.")

Panels = Sequence[tuple[str, Sequence[Cell]]]
"""The title of each panel, and its cells."""


def kinds(cells: Sequence[Cell]) -> list[list[Cell]]:
    """Return cells of one suite, kind and place together."""
    together: dict[tuple[str, str, str], list[Cell]] = {}
    for cell in cells:
        together.setdefault((cell.suite, cell.kind, cell.where), []).append(cell)
    return list(together.values())


def panels_beside(
    panels: int, *, width: float = 4.3, height: float = 3.1, across: int = 3
) -> tuple[Figure, list[Axes]]:
    """Return a figure with panels side by side; sizes in inches, of one panel."""
    columns = min(panels, across)
    rows = -(-panels // columns)
    # One panel alone has room for a legend of many modes below.
    size = (max(width * columns, _NARROWEST), height * rows)
    figure = Figure(figsize=size, layout="constrained")
    axes = list(figure.subplots(rows, columns, squeeze=False).flat)
    for spare in axes[panels:]:
        spare.remove()
    return figure, axes[:panels]


def lines(
    panels: Panels,
    value: Callable[[Cell, int], Spread],
    unit: str,
    *,
    log: bool = False,
    across: int = 3,
) -> Figure:
    """Draw one line for each mode over the number of Services.

    ``value``: of a cell, in the panel of a number.
    """
    figure, axes = panels_beside(len(panels), across=across)
    for at, (panel, (title, cells)) in enumerate(zip(axes, panels, strict=True)):
        seen: set[str] = set()
        for each in sorted({name(cell) for cell in cells}, key=rank):
            line = sorted((c for c in cells if name(c) == each), key=lambda cell: cell.services)
            style = line_style(line[0].mode)
            if line[0].mode in seen:  # a second line of a mode
                style["linestyle"] = ":"
            seen.add(line[0].mode)
            spreads = [value(cell, at) for cell in line]
            medians = [spread.median for spread in spreads]
            low = [spread.median - spread.quarter for spread in spreads]
            high = [spread.three_quarters - spread.median for spread in spreads]
            sizes = [cell.services for cell in line]
            panel.errorbar(sizes, medians, yerr=(low, high), elinewidth=0.8, label=each, **style)
        sizes = sorted({cell.services for cell in cells})
        panel.set_xscale("log")
        panel.set_xticks(sizes, [f"{size:,}" for size in sizes])
        panel.set_xticks([], minor=True)
        panel.set_xlabel("Services")
        if log:
            panel.set_yscale("log")
        else:
            panel.set_ylim(bottom=0)
        panel.yaxis.set_major_formatter(SHORT)
        panel.set_title(title)
        panel.set_ylabel(unit)
    add_legend(figure, axes)
    return figure


def bars(cells: Sequence[Cell], floor: Callable[[Cell], Cell | None] = lambda _: None) -> Figure:
    """Draw a bar for each kind and mode, kinds below each other."""
    groups = kinds(cells)
    rows = sum(len(group) + 1 for group in groups)
    figure, (panel,) = panels_beside(1, width=9, height=0.8 + 0.22 * rows)
    place = 0
    ticks: list[tuple[int, str]] = []
    for group in groups:
        ticks.append((place, about(group[0])))
        for cell in sorted(group, key=lambda cell: rank(cell.mode)):
            place -= 1
            ticks.append((place, cell.mode))
            bar(panel, place, cell, floor(cell))
        place -= 1
    panel.set_yticks([at for at, _ in ticks], [text for _, text in ticks])
    heads = {about(group[0]) for group in groups}
    for label in panel.get_yticklabels():
        if label.get_text() in heads:
            label.set_fontweight("bold")
    panel.grid(visible=False, axis="y")
    panel.set_xlabel(cells[0].unit)
    panel.set_xlim(left=0)
    panel.margins(x=0.12)
    panel.set_ylim(place + 0.4, 0.6)
    return figure


def bar(panel: Axes, place: int, cell: Cell, floor: Cell | None, text: str = "") -> None:
    """Draw the median of a cell with its quartiles, and ``text`` or the median behind it."""
    spread = cell.spread
    panel.barh(place, spread.median, color=look(cell.mode)[0], height=0.75)
    panel.hlines(place, spread.quarter, spread.three_quarters, color="#000000")
    panel.annotate(
        text or digits(spread.median),
        (max(spread.median, spread.three_quarters), place),
        xytext=(4, 0),
        textcoords="offset points",
        va="center",
    )
    if floor:
        panel.vlines(floor.median, place - 0.45, place + 0.45, color="#000000", lw=2)


def add_legend(figure: Figure, axes: Sequence[Axes]) -> None:
    """Name each line once, below all panels."""
    named: dict[str, Any] = {}
    for panel in axes:
        handles, names = panel.get_legend_handles_labels()
        named.update(zip(names, handles, strict=True))
    place: Any = {"loc": "outside lower center", "frameon": False}
    column = figure.legend(named.values(), named.keys(), **place)
    fitting = int(figure.bbox.width / (column.get_window_extent().width * _WIDER))
    column.remove()
    columns = min(max(1, fitting), len(named))
    figure.legend(named.values(), named.keys(), ncols=columns, **place)


def look(mode: str) -> tuple[str, str, str]:
    """Return colour, mark and line of a mode."""
    return _LOOKS.get(mode, _OTHER)


def line_style(mode: str) -> dict[str, Any]:
    """Return how the line of a mode is drawn."""
    colour, mark, line = look(mode)
    width = 2.0 if mode in OURS else 1.3
    return {"color": colour, "marker": mark, "linestyle": line, "linewidth": width}


def svg(figure: Figure, prefix: str) -> str:
    """Return a drawing as a part of a page, its names made unique by a prefix."""
    written = io.StringIO()
    figure.savefig(written, format="svg", metadata={"Date": None})
    svg = written.getvalue()
    body = re.sub(r"\s*<metadata>.*?</metadata>", "", svg[svg.index("<svg") :], flags=re.DOTALL)
    body = re.sub(r' xmlns(:\w+)?="[^"]*"', "", body, count=2)
    return re.sub(r'(\bid="|url\(#|href="#)', rf"\g<1>{prefix}", body)
