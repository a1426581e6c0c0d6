"""Results of a run, for tests of its reports."""

from __future__ import annotations

import io
from dataclasses import replace

from rich.console import Console

from bpfsvc.devtools.bench import report
from bpfsvc.devtools.bench.results import Cell, Results

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


def made_results() -> Results:
    """Return the results of a run of all suites."""
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


def terminal(results: Results, *, colour: bool = False, width: int = 100) -> str:
    """Return what a terminal shows of results."""
    console = Console(
        file=io.StringIO(),
        width=width,
        force_terminal=colour,
        color_system="standard" if colour else None,
    )
    report.terminal(results, console)
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


def cell_of(mode: str, *values: float, unit: str = "per second", **fields: object) -> Cell:
    """Return a cell of connections of pods; ``fields``: others that it has."""
    made = Cell(suite="pods", kind="connect", mode=mode, services=1, unit=unit, values=values)
    return replace(made, **fields)  # type: ignore[arg-type]
