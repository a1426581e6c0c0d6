"""What matters to an operator, in ten rows: bpfsvc as it comes beside kube-proxy.

Each entry is a ratio to ``direct`` at the smallest and at the largest size of cluster, or a figure
with its unit. A figure that was not measured is left out.
"""

from __future__ import annotations

from collections.abc import Callable

from bpfsvc.devtools.bench.figures import services_text
from bpfsvc.devtools.bench.modes import DEFAULT, DIRECT, KUBE_PROXIES, NO_SERVICE
from bpfsvc.devtools.bench.report.tables import Figure, Row, Table
from bpfsvc.devtools.bench.report.text import digits, factor
from bpfsvc.devtools.bench.results import Results

_SUITES = ("pods", "edge", "change")
_BESIDE = ("kube-proxy-nftables", "kube-proxy-iptables")


def compared_modes(results: Results) -> list[str]:
    """Return default and kube-proxy's modes: the real kube-proxy, or else its recorded rules."""
    modes = []
    for mode in (DEFAULT, *_BESIDE):
        names = (mode, KUBE_PROXIES.get(mode, mode))
        measured = [
            name for name in names if any(results.find(suite=suite, mode=name) for suite in _SUITES)
        ]
        modes += measured[:1]
    return modes


def outer_sizes(results: Results) -> list[int]:
    """Return the smallest and the largest size of cluster that was measured."""
    sizes = {cell.services for suite in _SUITES for cell in results.find(suite=suite)}
    return sorted({min(sizes), max(sizes)}) if sizes else []


def summary(results: Results) -> Table | None:
    """Return the ten rows as a table; None if nothing of bpfsvc as it comes was measured."""
    modes, sizes = compared_modes(results), outer_sizes(results)
    rows = []
    for name, text in _ROWS.items():
        entries = [tuple(text(results, mode, size) for size in sizes) for mode in modes]
        if any(map(any, entries)):
            figures = (
                Figure(tuple(part or "-" for part in entry)) if any(entry) else None
                for entry in entries
            )
            rows.append(Row("", name, tuple(figures)))
    if not rows or DEFAULT not in modes:
        return None
    at = " and at ".join(map(services_text, sizes))
    parts = f"at {at}; medians, ratios to direct where there is no unit"
    return Table("What matters", parts, tuple(modes), tuple(rows))


_Text = Callable[[Results, str, int], str]
"""Makes the entry of a mode at a size; empty if there is no figure."""


def _ratio(kind: str, where: str, *, cpu: bool = False) -> _Text:
    suite = "edge" if where in ("remote", "local") else "pods"

    def text(results: Results, mode: str, services: int) -> str:
        wanted = {"suite": suite, "kind": kind, "where": where, "mode": mode}
        cell = results.fewest_clients(services=services, **wanted)
        if cell is None:
            return ""
        if not cpu:
            return factor(cell.ratio) if cell.ratio is not None else ""
        spread = results.compared(cell, DIRECT, cpu=True)
        return factor(spread.median) if spread else ""

    return text


def _no_service(results: Results, mode: str, services: int) -> str:
    return _ratio("connect", "pod")(results, NO_SERVICE, services) if mode == DEFAULT else ""


def _change(results: Results, mode: str, services: int) -> str:
    """Return the time from the API event; of kube-proxy only where the real one was measured."""
    cell = results.first(suite="change", where="API", mode=mode, services=services)
    return f"{digits(cell.tail(99))} ms" if cell else ""


_ROWS: dict[str, _Text] = {
    "connections from a pod": _ratio("connect", "pod"),
    "connections from a process of the node": _ratio("connect", "node"),
    "requests on one connection": _ratio("request", "pod"),
    "one direction at full rate": _ratio("bulk", "pod"),
    "UDP question and answer, a socket each": _ratio("questions", "pod"),
    "connections to a NodePort, backend elsewhere": _ratio("connect", "remote"),
    "connections to a NodePort, backend on that node": _ratio("connect", "local"),
    "connections to no Service, agent there": _no_service,
    "CPU time of a connection (less is better)": _ratio("connect", "pod", cpu=True),
    "a change until packets follow, 99 of 100": _change,
}
