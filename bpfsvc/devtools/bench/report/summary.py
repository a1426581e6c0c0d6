"""What matters to an operator, in ten lines: bpfsvc as it comes beside kube-proxy.

Each entry is a ratio to ``direct`` at the smallest and at the largest size of cluster, or a figure
with its unit. What was not measured is left out.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

from bpfsvc.devtools.bench.figures import Spread, services_text
from bpfsvc.devtools.bench.modes import DEFAULT, DIRECT, KUBE_PROXIES, NO_SERVICE
from bpfsvc.devtools.bench.report.tables import Figure, Line, Table
from bpfsvc.devtools.bench.report.text import digits, factor
from bpfsvc.devtools.bench.results import Cell, Results

_SUITES = ("pods", "edge", "change")
_BESIDE = ("kube-proxy-nftables", "kube-proxy-iptables")


def compared_modes(results: Results) -> list[str]:
    """Return default and kube-proxy's modes: the real ones, or their recorded rules."""
    found = []
    for mode in (DEFAULT, *_BESIDE):
        layout = KUBE_PROXIES.get(mode, mode)
        found += [each for each in (mode, layout) if results.one(suite="pods", mode=each)][:1]
    return found


def outer_sizes(results: Results) -> list[int]:
    """Return the smallest and the largest size of cluster that was measured."""
    sizes = {cell.services for suite in _SUITES for cell in results.find(suite=suite)}
    return sorted({min(sizes), max(sizes)}) if sizes else []


def fewest_clients(results: Results, mode: str, services: int, **wanted: str) -> Cell | None:
    """Return what a mode did with the fewest clients measured."""
    cells = [cell for cell in results.find(mode=mode, services=services, **wanted) if cell.values]
    return min(cells, key=lambda cell: cell.clients, default=None)


def summary(results: Results) -> Table | None:
    """Return the ten lines as a table; None if nothing of bpfsvc as it comes was measured."""
    modes, sizes = compared_modes(results), outer_sizes(results)
    lines = []
    for matter in _MATTERS:
        rows = [[matter.text(results, mode, size) for size in sizes] for mode in modes]
        if any(any(row) for row in rows):
            figures = tuple(_figure(row) for row in rows)
            lines.append(Line("", matter.name, figures))
    if not lines or DEFAULT not in modes:
        return None
    at = " and at ".join(map(services_text, sizes))
    parts = f"at {at}; medians, ratios to direct where there is no unit"
    return Table("What matters", parts, tuple(modes), tuple(lines), "")


def _figure(row: Sequence[str]) -> Figure | None:
    return Figure(tuple(each or "-" for each in row)) if any(row) else None


class _Matter(NamedTuple):
    """One line: ``text`` makes the entry of a mode at a size, empty if there is none."""

    name: str
    text: Callable[[Results, str, int], str]


def _rate(kind: str, where: str) -> Callable[[Results, str, int], str]:
    suite = "edge" if where in ("remote", "local") else "pods"

    def text(results: Results, mode: str, services: int) -> str:
        cell = fewest_clients(results, mode, services, suite=suite, kind=kind, where=where)
        return factor(cell.ratio) if cell and cell.ratio is not None else ""

    return text


def _no_service(results: Results, mode: str, services: int) -> str:
    return _rate("connect", "pod")(results, NO_SERVICE, services) if mode == DEFAULT else ""


def _cpu(results: Results, mode: str, services: int) -> str:
    cell = fewest_clients(results, mode, services, suite="pods", kind="connect", where="pod")
    direct = results.beside(cell, DIRECT) if cell else None
    if not cell or not direct or not (cell.cpu and direct.cpu):
        return ""
    pairs = zip(cell.cpu, direct.cpu, strict=False)
    return factor(Spread.of([ours / theirs for ours, theirs in pairs]).median)


def _change(results: Results, mode: str, services: int) -> str:
    wanted = {"where": "API"} if mode == DEFAULT else {"where": "tool"}
    mode = KUBE_PROXIES.get(mode, mode)
    cell = fewest_clients(results, mode, services, suite="change", kind="change", **wanted)
    return f"{digits(cell.tail(99))} ms" if cell else ""


def _matters() -> Iterator[_Matter]:
    for name, kind, where in (
        ("connections from a pod", "connect", "pod"),
        ("connections from a process of the node", "connect", "node"),
        ("requests on one connection", "request", "pod"),
        ("one direction at full rate", "bulk", "pod"),
        ("UDP question and answer, a socket each", "questions", "pod"),
        ("connections to a NodePort, backend elsewhere", "connect", "remote"),
        ("connections to a NodePort, backend on that node", "connect", "local"),
    ):
        yield _Matter(name, _rate(kind, where))
    yield _Matter("connections to no Service, agent there", _no_service)
    yield _Matter("CPU time of a connection (less is better)", _cpu)
    yield _Matter("a change until packets follow, 99 of 100", _change)


_MATTERS = (*_matters(),)
