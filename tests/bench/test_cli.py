"""The command bench: what it takes, what it refuses, what it does before and after measuring."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from bpfsvc.cli.main import main
from bpfsvc.devtools.bench.figures import SUITES, Scale
from bpfsvc.devtools.bench.report.text import setting
from bpfsvc.devtools.bench.results import Cell, Results
from bpfsvc.devtools.bench.run import Run, RunPlan
from bpfsvc.devtools.bench.shortfall import LEFT_OUT


def bench(*arguments: str | Path) -> Result:
    return CliRunner().invoke(main, ["bench", *map(str, arguments)], prog_name="bpfsvc")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        pytest.param(["--suites", "pods,spin"], "'spin' is none of pods, edge", id="a suite"),
        pytest.param(["--suites", "flood"], "'flood' is measured no more; the suites", id="gone"),
        pytest.param(["--modes", "fast"], "'fast' has another name now: tc", id="renamed"),
        pytest.param(["--modes", "ebpf"], "'ebpf' is none of default, direct", id="a mode"),
        pytest.param(["--services", "0"], "'0' is no list of numbers from 1 to 30,000", id="none"),
        pytest.param(["--services", "10,x"], "'10,x' is no list of numbers", id="no number"),
        pytest.param(["--services", "30001"], "'30001' is no list of numbers", id="too many"),
        pytest.param(["--clients", "513"], "'513' is no list of numbers from 1 to 512", id="a lot"),
        pytest.param(["--rounds", "0"], "Invalid value for '--rounds'", id="no round"),
        pytest.param(["--minutes", "0"], "Invalid value for '--minutes'", id="no time"),
        pytest.param(["--json", "/no/such/x.json"], "there is no such directory", id="a file"),
        pytest.param(["--kube-proxy", "/no/such"], "does not exist", id="a binary"),
    ],
)
def test_invalid_options_are_refused_in_one_line(arguments: list[str], message: str) -> None:
    done = bench(*arguments)
    assert done.exit_code == 2
    assert message in done.output.splitlines()[0]


def test_measuring_needs_root(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    done = bench("--quick")
    assert done.exit_code == 1
    assert done.output == "Error: a sandbox needs root\nHint: run the command as root\n"


def test_reports_are_made_again_from_what_was_written(tmp_path: Path) -> None:
    """Needs nothing but the file, and gives it back as it was."""
    cells = [
        Cell(
            suite="pods",
            kind="connect",
            mode=mode,
            services=1,
            where="pod",
            unit="per second",
            values=(9_000.0, 9_100.0),
            ratios=ratios,
            reference="direct" if ratios else "",
        )
        for mode, ratios in (("direct", ()), ("tc", (0.97, 0.98)))
    ]
    results = Results(cells=cells, notes=["as it was"], seconds=12.5, quick=True)
    source = tmp_path / "results.json"
    source.write_text(results.to_json())
    again, sheet, document = (tmp_path / name for name in ("again.json", "x.csv", "x.md"))
    done = bench("--from", source, "--json", again, "--csv", sheet, "--markdown", document)
    assert done.exit_code == 0, done.output
    assert "* as it was" in done.output.splitlines()
    assert Results.from_json(again.read_text()) == results
    assert "tc" in sheet.read_text()
    assert "tc" in document.read_text()


def test_a_file_that_no_benchmark_wrote_is_refused(tmp_path: Path) -> None:
    source = tmp_path / "results.json"
    source.write_text("{}")
    done = bench("--from", source)
    assert done.exit_code == 1
    assert done.output.startswith("Error: these are no results of a benchmark")


def _cell(suite: str, mode: str = "tc", where: str = "", values: tuple[float, ...] = (1,)) -> Cell:
    return Cell(
        suite=suite, kind="any", mode=mode, services=1, where=where, unit="s", values=values
    )


def _all(*but: str) -> list[Cell]:
    """Return a figure of each usual suite, except some."""
    return [_cell(suite, where="API") for suite in SUITES if suite not in but]


_NO_DIRECT = "1 Service: setting direct up: nft ended with 1"
_NO_IPVS = "ipvs was not measured: no such kernel"
_NO_CHANGE = "change: 1 Service, agent (API): not healthy"
_LATE = f"{LEFT_OUT} 5 s: edge: 1 Service; change: 1 Service, agent (API)"


@pytest.fixture
def measure(monkeypatch: pytest.MonkeyPatch) -> Callable[..., Result]:
    """Return the command with given figures and notes, without measuring."""

    def run(arguments: str, cells: list[Cell], *notes: str) -> Result:
        def measured(plan: RunPlan) -> Results:
            results = Run(plan).results
            results.cells += cells
            results.notes += notes
            return results

        monkeypatch.setattr("bpfsvc.devtools.bench.run.measure", measured)
        return bench(*arguments.split())

    return run


@pytest.mark.parametrize(
    ("arguments", "cells", "notes", "error"),
    [
        pytest.param(
            "--suites pods,change --modes iptables,tc",
            [_cell("memory"), _cell("start")],
            (_NO_IPVS, _NO_DIRECT, _NO_CHANGE),
            f"nothing was measured: {_NO_DIRECT}",
            id="everything failed, though testbeds report their start",
        ),
        pytest.param(
            "--suites pods,change",
            [_cell("pods", values=()), _cell("change")],
            (_NO_CHANGE, _NO_DIRECT),
            f"no figures of the suite pods: {_NO_DIRECT}",
            id="a suite that was named",
        ),
        pytest.param(
            "--suites change,edge",
            [_cell("edge")],
            (_LATE,),
            f"no figures of the suite change: {_LATE}",
            id="a suite that was named and came too late",
        ),
        pytest.param(
            "",
            [*_all("change", "edge", "start"), _cell("start")],
            (_NO_CHANGE, "start: 1 Service from API: not healthy"),
            f"no figures of the suite change, the suite start: {_NO_CHANGE}",
            id="suites that were not named, as they failed",
        ),
        pytest.param(
            "--suites pods --modes ipvs,tc",
            [_cell("pods"), _cell("pods", "direct")],
            (_NO_IPVS,),
            f"no figures of the mode ipvs: {_NO_IPVS}",
            id="a mode that was named",
        ),
        pytest.param(
            "--suites pods --modes iptables,tc",
            [_cell("pods"), _cell("start", "iptables"), _cell("pods", "iptables-nft")],
            ("1 Service: setting iptables-nft up: slow", "1 Service: setting iptables up: broken"),
            "no figures of the mode iptables: 1 Service: setting iptables up: broken",
            id="a mode that is a part of another's name",
        ),
        pytest.param(
            "--suites change --modes nftables",
            [_cell("change")],
            (),
            "no figures of the mode nftables: no suite of this run could measure it",
            id="a mode that no suite measures",
        ),
    ],
)
def test_what_was_asked_for_and_has_no_figures_is_an_error_after_the_reports(
    measure: Callable[..., Result],
    tmp_path: Path,
    arguments: str,
    cells: list[Cell],
    notes: tuple[str, ...],
    error: str,
) -> None:
    """One line, with the first note that explains it; the reports are written all the same."""
    written = tmp_path / "results.json"
    done = measure(f"{arguments} --json {written}", cells, *notes)
    assert done.exit_code == 1
    assert f"\nError: {error}\nHint: " in done.output
    results = Results.from_json(written.read_text())
    assert results.cells == cells
    suites = arguments.split()[1].split(",") if "--suites" in arguments else [*SUITES]
    assert results.scale["suites"] == sorted(suites, key=SUITES.index)
    assert bench("--from", written).exit_code == 0


@pytest.mark.parametrize(
    ("arguments", "cells", "notes"),
    [
        pytest.param("", _all(), (_NO_IPVS, _NO_CHANGE), id="a part failed"),
        pytest.param("--modes all", _all(), (_NO_IPVS,), id="all modes are none by name"),
        pytest.param("--minutes 1", _all("edge", "change"), (_LATE,), id="as the time was up"),
        pytest.param("--modes direct", _all("change"), (), id="a suite without any use"),
        pytest.param("--suites edge --modes direct,tc", [_cell("edge")], (), id="direct"),
    ],
)
def test_measurements_that_are_impossible_or_too_late_become_notes(
    measure: Callable[..., Result], arguments: str, cells: list[Cell], notes: tuple[str, ...]
) -> None:
    done = measure(arguments, cells, *notes)
    assert done.exit_code == 0, done.output
    assert all(f"* {note}"[:60] in done.output for note in notes)


def test_a_kube_proxy_in_the_path_is_measured_without_asking(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    plans: list[RunPlan] = []

    def measured(plan: RunPlan) -> Results:
        plans.append(plan)
        results = Run(plan).results
        results.cells = _all()
        return results

    monkeypatch.setattr("bpfsvc.devtools.bench.run.measure", measured)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert bench().exit_code == 0
    binary = tmp_path / "kube-proxy"
    binary.write_text("#!/bin/sh\n")
    binary.chmod(0o755)
    assert bench("--kube-proxy-mode", "nftables").exit_code == 0
    assert [plan.kube_proxy for plan in plans] == [None, binary]
    assert [plan.layouts for plan in plans] == [("nftables", "iptables"), ("nftables",)]


def test_a_run_says_whether_it_was_pinned_when_and_with_which_kube_proxy(tmp_path: Path) -> None:
    binary = tmp_path / "kube-proxy"
    binary.write_text("#!/bin/sh\necho Kubernetes v1.36.0\n")
    binary.chmod(0o755)
    for pin, words in ((True, "pinned: client"), (False, "not pinned: client")):
        plan = RunPlan(suites=("pods",), scale=replace(Scale(), pin=pin), kube_proxy=binary)
        results = Run(plan).results
        machine, mitigated, pods, pinned, took = setting(results)
        assert machine.endswith("kube-proxy v1.36.0")
        assert mitigated.startswith("mitigations of CPU faults: ")
        assert pods == "pods: nodes have a route to the interface of each"
        assert pinned.startswith(words)
        assert took == f"{results.date}, took 0 s, 11 rounds"
