"""The plots of the page, of whatever the results hold: what is missing is left out."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

from matplotlib.axes import Axes

from bpfsvc.bench import words
from bpfsvc.bench.figures import Spread
from bpfsvc.bench.report.drawing import SHORT, Plot, Sheet, by_services, by_time, look, weight
from bpfsvc.bench.report.numbers import digits
from bpfsvc.bench.report.tables import TRAFFIC, about, heading, name
from bpfsvc.bench.results import FLOORS, Cell, Results, rank, tail


class _Drawn(NamedTuple):
    sheet: Sheet
    title: str
    about: str


def plots(results: Results) -> list[Plot]:
    """Give all plots there are figures for."""
    return [
        drawn.sheet.plot(drawn.title, drawn.about, number)
        for number, drawn in enumerate(drawings(results))
    ]


def drawings(results: Results) -> Iterator[_Drawn]:
    """Give the figures before they become text, in the order of the page."""
    traffic = [cell for cell in results.cells if cell.values and cell.suite in TRAFFIC]
    for cells in _kinds(traffic):
        yield from _ratios(cells)
        # A size that does not matter has no place on an axis.
        sized = [cell for cell in cells if cell.services]
        if sized:
            yield from _rates(sized)
            yield from _cpu(sized)
            yield from _latencies(sized)
        yield from _distributions(cells)
    for suite in ("frames", "programs"):
        yield from _floored(results, suite)
    yield from _changes(results)
    for suite in ("start", "memory"):
        yield from _plain(results, suite)


def _kinds(cells: Sequence[Cell]) -> list[list[Cell]]:
    """Take cells of one suite, kind and place together."""
    together: dict[tuple[str, str, str], list[Cell]] = {}
    for cell in cells:
        together.setdefault((cell.suite, cell.kind, cell.where), []).append(cell)
    return list(together.values())


def _ratios(cells: Sequence[Cell]) -> Iterator[_Drawn]:
    """Draw the ratios to the reference as dots with the quartiles, a panel for each size."""
    fewest = min(cell.clients for cell in cells)
    judged = [
        cell
        for cell in cells
        if cell.ratios and cell.clients == fewest and cell.mode != cell.reference
    ]
    sizes = sorted({cell.services for cell in judged})
    if not judged:
        return
    modes = _modes(judged)[::-1]
    sheet = Sheet(len(sizes), height=0.6 + 0.27 * len(modes) + 0.5, across=4)
    for panel, size in zip(sheet.panels, sizes, strict=True):
        panel.axvline(1, color="#000000", linewidth=1)
        for cell in judged:
            if cell.services == size:
                _dot(panel, modes.index(cell.mode), Spread.of(cell.ratios), cell.mode)
        panel.set_yticks(range(len(modes)), modes)
        panel.set_ylim(-0.6, len(modes) - 0.4)
        panel.set_title(words.services(size))
        panel.set_xlabel(f"ratio to {judged[0].reference}")
    yield _Drawn(
        sheet,
        f"{_title(cells)}: against {judged[0].reference}",
        f"{words.clients(fewest)}. Dots are medians of the ratios of rounds, bars their "
        "quartiles; right of the line is faster. Each panel has a scale of its own.",
    )


def _rates(cells: Sequence[Cell]) -> Iterator[_Drawn]:
    yield _by_services(
        cells,
        lambda cell: cell.spread,
        cells[0].unit,
        f"{_title(cells)}: rate",
        "Medians of the rounds with their quartiles; more is better.",
    )


def _cpu(cells: Sequence[Cell]) -> Iterator[_Drawn]:
    counted = [cell for cell in cells if cell.cpu]
    if counted:
        yield _by_services(
            counted,
            lambda cell: Spread.of(cell.cpu),
            "CPU µs an operation",
            f"{_title(cells)}: CPU time",
            "CPU time of an operation, medians with quartiles; less is better.",
        )


def _by_services(
    cells: Sequence[Cell],
    measure: Callable[[Cell], Spread],
    unit: str,
    title: str,
    text: str,
) -> _Drawn:
    """Draw one line for each mode over the number of Services, a panel for each of clients."""
    many = sorted({cell.clients for cell in cells})
    sheet = Sheet(len(many))
    for panel, clients in zip(sheet.panels, many, strict=True):
        alike = [cell for cell in cells if cell.clients == clients]
        for mode in _modes(alike):
            line = _line(alike, mode)
            spreads = [measure(cell) for cell in line]
            panel.errorbar(
                [cell.services for cell in line],
                [spread.median for spread in spreads],
                yerr=(
                    [spread.median - spread.quarter for spread in spreads],
                    [spread.three_quarters - spread.median for spread in spreads],
                ),
                elinewidth=0.8,
                label=mode,
                **_style(mode),
            )
        _finish(panel, alike, words.clients(clients), unit)
    sheet.legend()
    return _Drawn(sheet, title, text)


def _latencies(cells: Sequence[Cell]) -> Iterator[_Drawn]:
    """Draw percentiles over the number of Services, at the fewest clients."""
    fewest = min(cell.clients for cell in cells)
    timed = [cell for cell in cells if cell.latency and cell.clients == fewest]
    percents = [
        each for each in ("50", "90", "99", "99.9") if any(each in c.latency for c in timed)
    ]
    if not percents:
        return
    sheet = Sheet(len(percents), across=4)
    for panel, percent in zip(sheet.panels, percents, strict=True):
        alike = [cell for cell in timed if percent in cell.latency]
        for mode in _modes(alike):
            line = _line(alike, mode)
            panel.plot(
                [cell.services for cell in line],
                [cell.latency[percent] for cell in line],
                label=mode,
                **_style(mode),
            )
        _finish(panel, alike, f"{percent} % take no longer", "µs")
    sheet.legend()
    yield _Drawn(
        sheet,
        f"{_title(cells)}: latency",
        f"{words.clients(fewest)}; less is better.",
    )


def _distributions(cells: Sequence[Cell]) -> Iterator[_Drawn]:
    """Draw how many operations take how long, at the smallest and the largest size."""
    fewest = min(cell.clients for cell in cells)
    timed = [cell for cell in cells if cell.histogram and cell.clients == fewest]
    if not timed:
        return
    all_sizes = {cell.services for cell in timed}
    sizes = sorted({min(all_sizes), max(all_sizes)})
    sheet = Sheet(len(sizes))
    for panel, size in zip(sheet.panels, sizes, strict=True):
        alike = [cell for cell in timed if cell.services == size]
        for cell in sorted(alike, key=lambda cell: rank(cell.mode)):
            counts = list(itertools.accumulate(count for _, count in cell.histogram))
            panel.plot(
                [edge for edge, _ in cell.histogram],
                [count / counts[-1] for count in counts],
                drawstyle="steps-post",
                color=look(cell.mode).colour,
                linestyle=look(cell.mode).line,
                linewidth=weight(cell.mode),
                label=cell.mode,
            )
        by_time(panel)
        panel.set_ylim(0, 1.02)
        panel.set_xlabel("µs")
        panel.set_ylabel("part of operations")
        panel.set_title(words.services(size))
    sheet.legend()
    yield _Drawn(
        sheet,
        f"{_title(cells)}: distribution of latency",
        f"{words.clients(fewest)}. Part of operations that took no longer; left is better.",
    )


def _floored(results: Results, suite: str) -> Iterator[_Drawn]:
    """Draw costs as bars, with a line where doing nothing is."""
    cells = [cell for cell in results.find(suite=suite) if cell.values]
    if not cells:
        return
    largest = max(cell.services for cell in cells)
    bars = [cell for cell in cells if cell.services in (largest, 0)]
    floor = FLOORS[suite]
    size = f", {words.services(largest)}" if largest else ""
    yield _Drawn(
        _bars([cell for cell in bars if cell.mode != floor], floors=results, floor=floor),
        f"{heading(suite)}{size}",
        f"Medians with quartiles; black strokes are {floor}; less is better.",
    )


def _plain(results: Results, suite: str) -> Iterator[_Drawn]:
    cells = [cell for cell in results.find(suite=suite) if cell.values]
    for unit, size in sorted({(cell.unit, cell.services) for cell in cells}):
        yield _Drawn(
            _bars([cell for cell in cells if (cell.unit, cell.services) == (unit, size)]),
            f"{heading(suite)}, {words.services(size)}",
            "Medians with quartiles; less is better.",
        )


def _bars(cells: Sequence[Cell], floors: Results | None = None, floor: str = "") -> Sheet:
    """Draw a bar for each kind and mode, kinds below each other."""
    groups = _kinds(cells)
    rows = sum(len(group) + 1 for group in groups)
    sheet = Sheet(1, width=9, height=0.8 + 0.22 * rows)
    (panel,) = sheet.panels
    place = 0
    ticks: list[tuple[int, str]] = []
    for group in groups:
        ticks.append((place, about(group[0])))
        for cell in sorted(group, key=lambda cell: rank(cell.mode)):
            place -= 1
            ticks.append((place, cell.mode))
            spread = cell.spread
            panel.barh(place, spread.median, color=look(cell.mode).colour, height=0.75)
            panel.hlines(place, spread.quarter, spread.three_quarters, color="#000000")
            panel.annotate(
                digits(spread.median),
                (max(spread.median, spread.three_quarters), place),
                xytext=(4, 0),
                textcoords="offset points",
                va="center",
            )
            least = floors.beside(cell, floor) if floors else None
            if least:
                panel.vlines(least.median, place - 0.45, place + 0.45, color="#000000", lw=2)
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
    return sheet


def _changes(results: Results) -> Iterator[_Drawn]:
    """Draw half and 99 of 100 changes over the number of Services, both logarithmic."""
    cells = [cell for cell in results.find(suite="change") if cell.values and cell.services]
    if not cells:
        return
    sheet = Sheet(2)
    names = sorted({name(cell) for cell in cells}, key=rank)
    for panel, percent in zip(sheet.panels, (50, 99), strict=True):
        for each in names:
            line = sorted(
                (cell for cell in cells if name(cell) == each), key=lambda cell: cell.services
            )
            # The second way to tell an agent of changes is dotted.
            second = [one for one in names if one.split()[0] == line[0].mode].index(each) > 0
            panel.plot(
                [cell.services for cell in line],
                [tail(cell, percent) for cell in line],
                label=each,
                **_style(line[0].mode) | ({"linestyle": ":"} if second else {}),
            )
        _finish(panel, cells, f"{percent} % take no longer", cells[0].unit)
        panel.set_ylim(auto=True)
        panel.set_yscale("log")
        panel.yaxis.set_major_formatter(SHORT)
    sheet.legend()
    yield _Drawn(
        sheet,
        heading("change"),
        "From the change of an EndpointSlice to packets that go to the new backend; less is "
        "better.",
    )


def _title(cells: Sequence[Cell]) -> str:
    return f"{heading(cells[0].suite)}: {about(cells[0])}"


def _modes(cells: Sequence[Cell]) -> list[str]:
    return sorted({cell.mode for cell in cells}, key=rank)


def _line(cells: Sequence[Cell], mode: str) -> list[Cell]:
    """Take the cells of a mode by size."""
    return sorted((cell for cell in cells if cell.mode == mode), key=lambda cell: cell.services)


def _style(mode: str) -> dict[str, Any]:
    its = look(mode)
    return {
        "color": its.colour,
        "marker": its.mark,
        "linestyle": its.line,
        "linewidth": weight(mode),
    }


def _dot(panel: Axes, place: int, spread: Spread, mode: str) -> None:
    its = look(mode)
    panel.hlines(place, spread.quarter, spread.three_quarters, color=its.colour, linewidth=3)
    panel.plot([spread.median], [place], its.mark, color=its.colour, markersize=7)


def _finish(panel: Axes, cells: Sequence[Cell], title: str, unit: str) -> None:
    by_services(panel, sorted({cell.services for cell in cells}))
    panel.set_ylim(bottom=0)
    panel.yaxis.set_major_formatter(SHORT)
    panel.set_title(title)
    panel.set_ylabel(unit)
