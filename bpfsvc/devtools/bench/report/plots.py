"""The plots of the page, of whatever the results hold: what is missing is left out."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

from matplotlib import rc_context
from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator, NullFormatter

from bpfsvc.devtools.bench.figures import Spread, clients_text, services_text
from bpfsvc.devtools.bench.modes import DEFAULT, DIRECT
from bpfsvc.devtools.bench.report.drawing import (
    SETTINGS,
    SHORT,
    Panels,
    add_legend,
    bar,
    bars,
    kinds,
    line_style,
    lines,
    look,
    panels_beside,
    svg,
)
from bpfsvc.devtools.bench.report.summary import compared_modes, fewest_clients, outer_sizes
from bpfsvc.devtools.bench.report.tables import TRAFFIC, about, heading
from bpfsvc.devtools.bench.report.text import factor, short
from bpfsvc.devtools.bench.results import FLOORS, Cell, Results, rank

_PERCENTILES = ("50", "90", "99", "99.9")

_Drawing = tuple[Figure, str, str]
"""A figure, its title, and what it shows."""


class Plot(NamedTuple):
    """A drawing for a page: a title, what to look at, and SVG that loads nothing."""

    title: str
    about: str
    svg: str


def plots(results: Results) -> list[Plot]:
    """Return all plots there are figures for, in the order of the page."""
    with rc_context(SETTINGS):
        return [
            Plot(title, text, svg(figure, f"p{number}-"))
            for number, (figure, title, text) in enumerate(_drawings(results))
        ]


def opening(results: Results) -> Plot | None:
    """Return the plot that a page begins with: bpfsvc as it comes, beside kube-proxy and direct."""
    with rc_context(SETTINGS):
        return next(
            (Plot(title, text, svg(figure, "p-")) for figure, title, text in _opening(results)),
            None,
        )


def _drawings(results: Results) -> Iterator[_Drawing]:
    traffic = [cell for cell in results.cells if cell.values and cell.suite in TRAFFIC]
    for cells in kinds(traffic):
        yield from _ratios(cells)
        # A size that does not matter has no place on an axis.
        if sized := [cell for cell in cells if cell.services]:
            yield from _rates(sized)
            yield from _latencies(sized)
        yield from _distributions(cells)
    for suite in FLOORS:
        yield from _costs(results, suite)
    yield from _changes(results)
    for suite in ("start", "memory"):
        yield from _plain_bars(results, suite)


def _by(cells: Sequence[Cell], field: str, text: Callable[[int], str]) -> Panels:
    """Return a panel for each value of a field."""
    values = sorted({getattr(cell, field) for cell in cells})
    return [(text(each), [c for c in cells if getattr(c, field) == each]) for each in values]


def _title(cells: Sequence[Cell]) -> str:
    return f"{heading(cells[0].suite)}: {about(cells[0])}"


def _fewest(cells: Sequence[Cell]) -> int:
    return min(cell.clients for cell in cells)


# -- what is drawn --------------------------------------------------------------------------------


def _opening(results: Results) -> Iterator[_Drawing]:
    """Draw connections of a pod as bars, a panel for the smallest and one for the largest size."""
    modes = [*compared_modes(results), DIRECT]
    panels = []
    for size in outer_sizes(results):
        found = (
            fewest_clients(results, mode, size, suite="pods", kind="connect", where="pod")
            for mode in modes
        )
        if cells := [cell for cell in found if cell]:
            panels.append((services_text(size), cells))
    if not any(cell.mode == DEFAULT for _, cells in panels for cell in cells):
        return
    figure, axes = panels_beside(len(panels), width=6.5, height=1.1 + 0.42 * len(modes))
    most = max(cell.spread.three_quarters for _, cells in panels for cell in cells)
    for panel, (title, cells) in zip(axes, panels, strict=True):
        for cell in cells:
            place = -modes.index(cell.mode)
            bar(panel, place, cell, None, _against_direct(cell))
        panel.set_yticks([-at for at in range(len(modes))], modes)
        panel.grid(visible=False, axis="y")
        panel.set_xlim(0, most * 1.45)  # room for what is written behind the bars
        panel.xaxis.set_major_formatter(SHORT)
        panel.set_xlabel("connections a second")
        panel.set_title(title)
    clients = clients_text(panels[0][1][0].clients)
    yield (
        figure,
        "New connections from a pod to a Service: bpfsvc as it comes, kube-proxy, and direct",
        f"Connect, request, close, with {clients}. Behind each bar: its rate, and how much of "
        "direct's that is; more is better.",
    )


def _against_direct(cell: Cell) -> str:
    ratio = "" if cell.ratio is None else f"  ({factor(cell.ratio)} of direct)"
    return f"{short(cell.median)}{ratio}"


def _ratios(cells: Sequence[Cell]) -> Iterator[_Drawing]:
    """Draw the ratios to the reference as dots with the quartiles, a panel for each size."""
    fewest = _fewest(cells)
    judged = [
        cell
        for cell in cells
        if cell.ratios and cell.clients == fewest and cell.mode != cell.reference
    ]
    if not judged:
        return
    modes = sorted({cell.mode for cell in judged}, key=rank)[::-1]
    panels = _by(judged, "services", services_text)
    figure, axes = panels_beside(len(panels), height=1.1 + 0.27 * len(modes), across=4)
    for panel, (title, alike) in zip(axes, panels, strict=True):
        panel.axvline(1, color="#000000", linewidth=1)
        for cell in alike:
            colour, mark, _ = look(cell.mode)
            spread, at = Spread.of(cell.ratios), modes.index(cell.mode)
            panel.hlines(at, spread.quarter, spread.three_quarters, color=colour, linewidth=3)
            panel.plot([spread.median], [at], mark, color=colour, markersize=7)
        panel.set_yticks(range(len(modes)), modes)
        panel.set_ylim(-0.6, len(modes) - 0.4)
        panel.set_title(title)
        panel.set_xlabel(f"ratio to {judged[0].reference}")
    yield (
        figure,
        f"{_title(cells)}: against {judged[0].reference}",
        f"{clients_text(fewest)}. Dots are medians of the ratios of rounds, bars their "
        "quartiles; right of the line is faster. Each panel has a scale of its own.",
    )


def _rates(cells: Sequence[Cell]) -> Iterator[_Drawing]:
    panels = _by(cells, "clients", clients_text)
    yield (
        lines(panels, lambda cell, _: cell.spread, cells[0].unit),
        f"{_title(cells)}: rate",
        "Medians of the rounds with their quartiles; more is better.",
    )
    if counted := [cell for cell in cells if cell.cpu]:
        panels = _by(counted, "clients", clients_text)
        yield (
            lines(panels, lambda cell, _: Spread.of(cell.cpu), "CPU µs an operation"),
            f"{_title(cells)}: CPU time",
            "CPU time of an operation, medians with quartiles; less is better.",
        )


def _latencies(cells: Sequence[Cell]) -> Iterator[_Drawing]:
    """Draw percentiles over the number of Services, at the fewest clients."""
    fewest = _fewest(cells)
    panels = [
        (percent, [cell for cell in cells if cell.clients == fewest and percent in cell.latency])
        for percent in _PERCENTILES
    ]
    if panels := [(percent, alike) for percent, alike in panels if alike]:
        figure = lines(
            [(f"{percent} % take no longer", alike) for percent, alike in panels],
            lambda cell, at: Spread.of([cell.latency[panels[at][0]]]),
            "µs",
            across=4,
        )
        text = f"{clients_text(fewest)}; less is better."
        yield figure, f"{_title(cells)}: latency", text


def _distributions(cells: Sequence[Cell]) -> Iterator[_Drawing]:
    """Draw how many operations take how long, at the smallest and the largest size."""
    fewest = _fewest(cells)
    timed = [cell for cell in cells if cell.histogram and cell.clients == fewest]
    if not timed:
        return
    panels = _by(timed, "services", services_text)
    panels = [panels[0], panels[-1]] if len(panels) > 1 else panels
    figure, axes = panels_beside(len(panels))
    for panel, (title, alike) in zip(axes, panels, strict=True):
        for cell in sorted(alike, key=lambda cell: rank(cell.mode)):
            counts = list(itertools.accumulate(count for _, count in cell.histogram))
            edges = [edge for edge, _ in cell.histogram]
            parts = [count / counts[-1] for count in counts]
            style = line_style(cell.mode) | {"marker": ""}
            panel.plot(edges, parts, drawstyle="steps-post", label=cell.mode, **style)
        panel.set_xscale("log")
        panel.xaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
        panel.xaxis.set_major_formatter(SHORT)
        panel.xaxis.set_minor_formatter(NullFormatter())
        panel.set_ylim(0, 1.02)
        panel.set_xlabel("µs")
        panel.set_ylabel("part of operations")
        panel.set_title(title)
    add_legend(figure, axes)
    yield (
        figure,
        f"{_title(cells)}: distribution of latency",
        f"{clients_text(fewest)}. Part of operations that took no longer; left is better.",
    )


def _changes(results: Results) -> Iterator[_Drawing]:
    """Draw half and 99 of 100 changes over the number of Services, both logarithmic."""
    cells = [cell for cell in results.find(suite="change") if cell.values and cell.services]
    if cells:
        panels = [(f"{percent} % take no longer", cells) for percent in (50, 99)]
        figure = lines(
            panels, lambda cell, at: Spread.of([cell.tail((50, 99)[at])]), cells[0].unit, log=True
        )
        text = "From the change of an EndpointSlice to packets that go to the new backend"
        yield figure, heading("change"), f"{text}; less is better."


def _costs(results: Results, suite: str) -> Iterator[_Drawing]:
    """Draw costs as bars, with a line where doing nothing is."""
    cells = [cell for cell in results.find(suite=suite) if cell.values]
    if not cells:
        return
    largest, floor = max(cell.services for cell in cells), FLOORS[suite]
    shown = [cell for cell in cells if cell.services in (largest, 0) and cell.mode != floor]
    if not shown:
        return
    size = f", {services_text(largest)}" if largest else ""
    yield (
        bars(shown, lambda cell: results.beside(cell, floor)),
        f"{heading(suite)}{size}",
        f"Medians with quartiles; black strokes are {floor}; less is better.",
    )


def _plain_bars(results: Results, suite: str) -> Iterator[_Drawing]:
    cells = [cell for cell in results.find(suite=suite) if cell.values]
    for unit, size in sorted({(cell.unit, cell.services) for cell in cells}):
        yield (
            bars([cell for cell in cells if (cell.unit, cell.services) == (unit, size)]),
            f"{heading(suite)}, {services_text(size)}",
            "Medians with quartiles; less is better.",
        )
