"""The command bench: what it takes, what it refuses, what it does before and after measuring."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from bpfsvc.bench import figures, rivals
from bpfsvc.bench.clusters import modes
from bpfsvc.bench.clusters.modes import Cluster
from bpfsvc.bench.clusters.objects import MEASURED, NODE_PORT, PORT
from bpfsvc.bench.figures import QUICK, SHORT, SUITES, USUAL, Scale
from bpfsvc.bench.results import MODES, Cell, Results
from bpfsvc.bench.runs.plan import Plan, Run
from bpfsvc.bench.steps import LEFT_OUT, Step, take
from bpfsvc.bench.suites import traffic
from bpfsvc.bench.suites.durations import setup_seconds
from bpfsvc.bench.suites.traffic import KINDS, tasks
from bpfsvc.commands import main
from bpfsvc.commands.bench import Several
from bpfsvc.errors import BpfsvcError, SystemUnfit


def bench(*arguments: str | Path) -> Result:
    return CliRunner().invoke(main, ["bench", *map(str, arguments)], prog_name="bpfsvc")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        pytest.param(["--suites", "pods,spin"], "'spin' is none of pods, edge", id="a suite"),
        pytest.param(["--modes", "ebpf"], "'ebpf' is none of direct, iptables", id="a mode"),
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
def test_what_cannot_be_measured_is_refused_in_one_line(arguments: list[str], message: str) -> None:
    found = bench(*arguments)
    assert found.exit_code == 2
    assert message in found.output.splitlines()[0]


def test_measuring_needs_root(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    found = bench("--quick")
    assert found.exit_code == 1
    assert found.output == "Error: a sandbox needs root\nHint: run the command as root\n"


def test_the_module_is_the_command() -> None:
    run = subprocess.run(
        [sys.executable, "-m", "bpfsvc.bench", "--help"],
        capture_output=True,
        text=True,
        check=True,
        cwd=Path(__file__).parents[2],
    )
    assert run.stdout.split() == bench("--help").output.split()


def test_names_are_taken_in_their_own_order() -> None:
    several = Several(("a", "b", "c"))
    assert several.convert("c, a", None, None) == ("a", "c")
    assert several.convert("all", None, None) == ("a", "b", "c")


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
    found = bench("--from", source, "--json", again, "--csv", sheet, "--markdown", document)
    assert found.exit_code == 0, found.output
    assert "* as it was" in found.output.splitlines()
    assert Results.from_json(again.read_text()) == results
    assert "tc" in sheet.read_text()
    assert "tc" in document.read_text()


def test_what_no_benchmark_wrote_is_refused(tmp_path: Path) -> None:
    source = tmp_path / "results.json"
    source.write_text("{}")
    found = bench("--from", source)
    assert found.exit_code == 1
    assert found.output.startswith("Error: these are no results of a benchmark")


def _cell(suite: str, mode: str = "tc", where: str = "", values: tuple[float, ...] = (1,)) -> Cell:
    return Cell(
        suite=suite, kind="any", mode=mode, services=1, where=where, unit="s", values=values
    )


def _all(*but: str) -> list[Cell]:
    """Give a figure of each of the usual suites but some."""
    return [_cell(suite, where="API") for suite in USUAL if suite not in but]


_NO_DIRECT = "1 Service: setting direct up: nft ended with 1"
_NO_IPVS = "ipvs was not measured: no such kernel"
_NO_CHANGE = "change: 1 Service, agent (API): not healthy"
_LATE = f"{LEFT_OUT} 5 s: frames: 1 Service; change: 1 Service, agent (API)"


@pytest.fixture
def measure(monkeypatch: pytest.MonkeyPatch) -> Callable[..., Result]:
    """Give the command, with figures and notes that are not measured but given."""

    def run(arguments: str, cells: list[Cell], *notes: str) -> Result:
        def measured(plan: Plan) -> Results:
            results = Run(plan).results
            results.cells += cells
            results.notes += notes
            return results

        monkeypatch.setattr("bpfsvc.bench.runs.plan.measure", measured)
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
            id="everything failed, though stands tell how they started",
        ),
        pytest.param(
            "--suites pods,change",
            [_cell("pods", values=()), _cell("change")],
            (_NO_CHANGE, _NO_DIRECT),
            f"no figures of the suite pods: {_NO_DIRECT}",
            id="a suite that was named",
        ),
        pytest.param(
            "--suites change,frames",
            [_cell("frames")],
            (_LATE,),
            f"no figures of the suite change: {_LATE}",
            id="a suite that was named and came too late",
        ),
        pytest.param(
            "",
            [*_all("change", "edge", "start"), _cell("start")],
            (_NO_CHANGE, "start: 1 Service from API: not healthy"),
            f"no figures of the suite change, the suite start: {_NO_CHANGE}",
            id="suites that nobody named, as they failed",
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
            "--suites programs --modes nftables",
            [_cell("programs")],
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
    found = measure(f"{arguments} --json {written}", cells, *notes)
    assert found.exit_code == 1
    assert f"\nError: {error}\nHint: " in found.output
    results = Results.from_json(written.read_text())
    assert results.cells == cells
    suites = arguments.split()[1].split(",") if "--suites" in arguments else [*USUAL]
    assert results.scale["suites"] == sorted(suites, key=SUITES.index)
    assert bench("--from", written).exit_code == 0


@pytest.mark.parametrize(
    ("arguments", "cells", "notes"),
    [
        pytest.param("", _all(), (_NO_IPVS, _NO_CHANGE), id="a part failed"),
        pytest.param("--modes all", _all(), (_NO_IPVS,), id="all modes are none by name"),
        pytest.param("--minutes 1", _all("frames", "change"), (_LATE,), id="as the time was up"),
        pytest.param("--modes direct", _all("change"), (), id="a suite without any use"),
        pytest.param("--suites frames --modes direct,tc", [_cell("frames")], (), id="direct"),
    ],
)
def test_what_this_machine_cannot_do_or_has_no_time_for_is_a_note(
    measure: Callable[..., Result], arguments: str, cells: list[Cell], notes: tuple[str, ...]
) -> None:
    found = measure(arguments, cells, *notes)
    assert found.exit_code == 0, found.output
    assert all(f"* {note}"[:60] in found.output for note in notes)


def test_what_is_measured_by_default_is_some_of_all() -> None:
    assert set(SHORT) < set(USUAL) < set(SUITES)
    assert tuple(SUITES[:2]) == traffic.SUITES
    assert set(QUICK.services) <= set(Scale().services)
    assert set(QUICK.kinds) <= set(KINDS["pods"])
    assert QUICK.limit < 180


def test_a_quick_run_asks_less_of_everything() -> None:
    assert len(tasks("pods", QUICK)) < len(tasks("pods", Scale()))
    (first, *_) = tasks("edge", Scale())
    assert str(first) == "edge: connect, remote, 1 client"
    assert first.seconds(2, QUICK) < first.seconds(2, Scale()) < first.seconds(3, Scale())


def test_a_cluster_of_one_service_is_the_measured_one(tmp_path: Path) -> None:
    cluster = Cluster(1, tmp_path, "10.244.2.11", 9000)
    files = sorted(file.name for file in cluster.manifests().iterdir())
    assert files == ["measured-slice.json", "measured.json"]
    tcp, udp = cluster.balanced()
    assert (tcp.protocol, udp.protocol) == ("tcp", "udp")
    for port in (tcp, udp):
        assert (port.address, port.port, port.node_port) == (MEASURED, PORT, NODE_PORT)
        assert port.backends == (("10.244.2.11", 9000),)


def test_the_measured_service_stands_in_the_middle_of_the_rules(tmp_path: Path) -> None:
    cluster = Cluster(101, tmp_path, "10.244.2.11", 9000)
    rules = cluster.balanced()
    assert len(rules) == 102
    assert [rule.address for rule in rules].index(MEASURED) == 50
    assert all(len(rule.backends) == 4 for rule in rules if rule.address != MEASURED)
    assert len({rule.key for rule in rules}) == 102
    assert len(list(cluster.manifests().iterdir())) == 202


def test_direct_is_always_measured_and_what_cannot_be_is_told(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    obstacles = {"iptables": "", "iptables-nft": "", "nftables": "", "ipvs": "no such kernel"}
    monkeypatch.setattr(rivals, "modes", lambda: obstacles)
    found, notes = modes.possible(["tc", "ipvs", "kube-proxy"], kube_proxy=False)
    assert found == ["direct", "tc"]
    assert notes == [
        "ipvs was not measured: no such kernel",
        "kube-proxy was not measured: its binary is to be given",
    ]
    everything, _ = modes.possible([], kube_proxy=True)
    assert everything == [mode for mode in MODES if mode != "ipvs"]


def test_a_rival_that_will_be_too_slow_is_planned_for_no_longer_than_its_limit() -> None:
    assert setup_seconds("iptables-nft", 100_000, limit=10.0) == pytest.approx(10.6)
    assert setup_seconds("direct", 10_000) < setup_seconds("iptables", 10_000)


class Told:
    """Who remembers what was shown."""

    def __init__(self) -> None:
        self.steps: list[tuple[str, float]] = []
        self.notes: list[str] = []

    def step(self, text: str, seconds: float) -> None:
        self.steps.append((text, seconds))

    def note(self, text: str) -> None:
        self.notes.append(text)


class Interruption:
    """One that comes before the n-th step."""

    def __init__(self, at: int = 0) -> None:
        self._left = at

    def check(self) -> None:
        self._left -= 1
        if not self._left:
            raise KeyboardInterrupt


def test_steps_that_fail_or_come_too_late_are_noted() -> None:
    done: list[str] = []

    def fail(_say: figures.Say) -> None:
        raise BpfsvcError("it broke")

    steps = [
        Step("one", 1.0, lambda say: say("more")),
        Step("two", 2.0, fail),
        Step("long", 100.0, lambda _: done.append("long")),
        Step("last", 100.0, lambda _: done.append("last"), always=True),
    ]
    results, told = Results(), Told()
    take(steps, results, told, Interruption(), limit=50.0)
    assert done == ["last"]
    assert results.notes == told.notes
    assert results.notes == [
        "two: it broke",
        "left out, for the run may not take longer than 50 s: long",
    ]
    assert told.steps[:3] == [("one", 0.0), ("one: more", 0.0), ("one", 1.0)]


def test_of_a_failure_whose_tidying_up_failed_too_the_first_is_told_first() -> None:
    def fail(_say: figures.Say) -> None:
        try:
            try:
                raise BpfsvcError("it broke")
            finally:
                raise KeyError("no matter")
        finally:
            raise OSError("it is busy")

    def fail_clearly(_say: figures.Say) -> None:
        try:
            raise OSError("a detail")
        except OSError as error:
            raise BpfsvcError("it broke") from error

    results = Results()
    steps = [Step("one", 1.0, fail), Step("two", 1.0, fail_clearly)]
    take(steps, results, Told(), Interruption())
    assert results.notes == ["one: it broke; and then: it is busy", "two: it broke"]


def test_a_tool_that_is_missing_ends_the_run() -> None:
    def fail(_say: figures.Say) -> None:
        raise SystemUnfit("no such tool")

    with pytest.raises(SystemUnfit):
        take([Step("one", 1.0, fail)], Results(), Told(), Interruption())


def test_an_interruption_that_got_lost_ends_the_run_before_the_next_step() -> None:
    done: list[str] = []
    steps = [Step("one", 1.0, lambda _: done.append("one")), Step("two", 1.0, lambda _: None)]
    with pytest.raises(KeyboardInterrupt):
        take(steps, Results(), Told(), Interruption(2))
    assert done == ["one"]
