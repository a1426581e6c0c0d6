"""Results of a run, for tests of its reports."""

from __future__ import annotations

import io
from typing import Any

from rich.console import Console

from bpfsvc.devtools.bench import report
from bpfsvc.devtools.bench.results import Cell, Results

_RATES = {"direct": 100.0, "iptables": 80.0, "nftables": 95.0, "tc": 98.0, "default": 120.0}


def cell_of(mode: str, *values: float, **fields: Any) -> Cell:
    """Return a cell of connections of pods; ``fields``: other fields of the cell."""
    usual = Cell("pods", "connect", mode, 1, "per second", values, where="pod")
    return usual.having(**fields)


def _traffic(services: int, clients: int, **fields: Any) -> list[Cell]:
    return [
        cell_of(
            mode,
            rate * 1000,
            rate * 1010,
            services=services,
            clients=clients,
            ratios=() if mode == "direct" else (rate / 100, rate / 100),
            reference="" if mode == "direct" else "direct",
            cpu=(4000 / rate, 4040 / rate),
            latency={"50": 10.0, "90": 12.0, "99": 30.0, "99.9": 400.0},
            histogram=((8.0, 5), (16.0, 90), (32.0, 5)),
            **fields,
        )
        for mode, rate in _RATES.items()
    ]


def _others() -> list[Cell]:
    measured = (
        ("change", "change", "ms", {"kube-proxy-iptables": 600.0, "default": 4.0}),
        ("start", "first sync", "s", {"iptables": 1.5, "tc": 2.5}),
        ("memory", "agent, RSS", "MB", {"tc": 60.0}),
        ("flood", "CPU, busy", "%", {"tc": 30.0}),  # of an earlier version
    )
    return [
        Cell(suite, kind, mode, 10_000, unit, (value, value * 1.02), "API")
        for suite, kind, unit, modes in measured
        for mode, value in modes.items()
    ]


def made_results() -> Results:
    """Return the results of a run of all suites."""
    sizes = (1, 100, 1000, 10_000, 30_000)
    return Results(
        machine={"kernel": "6.12.1", "processor": "<b>fast & furious</b>", "cores": 2},
        scale={"rounds": 2},
        cells=[
            *(cell for size in sizes for clients in (1, 4) for cell in _traffic(size, clients)),
            *_traffic(1, 1, suite="edge", where="remote"),
            *_others(),
        ],
        notes=["ipvs: <no> module | left out"],
        seconds=75.0,
    )


def terminal(results: Results, *, colour: bool = False) -> str:
    """Return what a terminal of 100 columns shows of results."""
    system = "standard" if colour else None
    console = Console(file=io.StringIO(), width=100, force_terminal=colour, color_system=system)  # type: ignore[arg-type]
    report.terminal(results, console)
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()
