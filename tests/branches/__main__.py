"""``make coverage``: run tests with programs that mark branches, and say what was not seen."""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

from bpfsvc.base.map_sizes import Sizes
from bpfsvc.datapath.loader import shipped
from bpfsvc.datapath.loader.source import load
from tests.branches import report
from tests.branches.outcomes import Sources, coverage, numbered_outcomes, read_run
from tests.branches.recorder import DIRECTORY, MAP, PLACES, REFUSALS
from tests.docs.figures import commit, write_section

_CHILD = Path(__file__).with_name("child").resolve()
_SETTINGS = """\
[run]
source = bpfsvc
branch = True
parallel = True
sigterm = True
data_file = {directory}/python
[paths]
source =
    bpfsvc
    */bpfsvc
"""
_NOT_WITH_MARKS = ("tests/packets/test_verifier.py",)
"""Tests that measure the programs themselves."""
_LEFT_OUT = """\
Left out: the programs on another kernel or with other features than those of this one; agents that
may not open the map of the marks, for want of rights; Python of processes that were killed, and of
the compiler. Two conditions that the compiler puts at one place of the sources are one here."""


def main() -> int:
    """Run tests, report. The status is that of the tests, or 1 if reasons are for nothing."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("tests", nargs="*", help="directories; none: report what was run before")
    parser.add_argument("--directory", type=Path, default=Path("build/coverage"))
    parser.add_argument("--more", action="store_true", help="keep what was seen before")
    parser.add_argument("--slow", action="store_true", help="the slow tests instead")
    parser.add_argument("--workers", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--write", type=Path, metavar="FILE", help="put the figures there")
    arguments = parser.parse_args()
    directory: Path = arguments.directory.resolve()
    status = 0
    if arguments.tests:
        _prepare(directory, arguments.more)
        status = _run(directory, arguments)
    text, unseen, stale = _report(directory)
    print(f"{text}\n\nNot seen:\n\n{unseen or 'nothing'}")
    for function, line, side in stale:
        print(f"{report.REASONS}: {function}: {line}: {side}: was seen, or is not there any more")
    if arguments.write:
        write_section(arguments.write, "make coverage", text)
    return status or int(bool(stale))


def _prepare(directory: Path, more: bool) -> None:
    """Compile; remove earlier records, unless they are of the same programs and wanted."""
    asked = [sys.executable, "-m", "tests.branches.places"]
    places = subprocess.run(asked, stdout=subprocess.PIPE, text=True, check=True).stdout
    file = directory / PLACES
    if not (more and file.exists() and file.read_text() == places):
        shutil.rmtree(directory, ignore_errors=True)
    directory.mkdir(parents=True, exist_ok=True)
    shipped.ship(directory / "compiled")
    file.write_text(places)
    (directory / "commit").write_text(commit())
    (directory / "coveragerc").write_text(_SETTINGS.format(directory=directory))


def _run(directory: Path, arguments: argparse.Namespace) -> int:
    environment = {
        **os.environ,
        DIRECTORY: str(directory),
        "BPFSVC_LAB_COMPILED": str(directory / "compiled"),
        "BPFSVC_LAB_PATIENCE": os.environ.get("BPFSVC_LAB_PATIENCE", "10"),
        "COVERAGE_PROCESS_START": str(directory / "coveragerc"),
        "PYTHONPATH": str(_CHILD),
    }
    environment.pop(MAP, None)
    command = [sys.executable, "-m", "pytest", "-q"]
    if arguments.workers > 1:
        worker = (
            f"popen//python={sys.executable} -m bpfsvc.devtools.lab.sandbox -- {sys.executable}"
        )
        command += ["--dist", "worksteal", "--tx", f"{arguments.workers}*{worker}"]
    else:
        command += ["-p", "bpfsvc.devtools.lab.pytest_plugin"]
    command += ["-p", "tests.branches.plugin"]
    kind = "slow" if arguments.slow else "not slow"
    command += ["-m", f"{kind} and not kubernetes"]
    command += [f"--deselect={test}" for test in _NOT_WITH_MARKS]
    with (directory / "tests").open("a") as file:
        file.write(json.dumps([arguments.slow, *arguments.tests]) + "\n")
    return subprocess.run([*command, *arguments.tests], env=environment, check=False).returncode


def _report(directory: Path) -> tuple[str, str, list[report.Key]]:
    """Return the figures, what was not seen, and the reasons that nothing needs."""
    source = load(Sizes())
    sources = Sources(source.root)
    outcomes = numbered_outcomes(directory / PLACES, sources)
    of_run = coverage(outcomes, *read_run(directory))
    judged = report.judge(of_run, sources, report.read_reasons())
    measured_at = (directory / "commit").read_text()
    lines = [f"`make coverage` at {measured_at}, {_tests(directory)}:", ""]
    lines += [report.figures(of_run, judged), ""]
    if judged.missed:
        lines += ["`make coverage` lists what was not seen.", ""]
    lines += ["Cannot be seen:", ""]
    lines += [report.excuses(judged, sources) or "* nothing", ""]
    refusals = directory / REFUSALS
    if refusals.exists():
        lines += [
            f"Without marks: {line}" for line in sorted(set(refusals.read_text().split("\n")))
        ]
    if python := _python(directory):
        lines += ["Python, by coverage.py:", "", python, ""]
    text = report.wrapped("\n".join(lines)) + "\n" + _LEFT_OUT
    return text, report.unseen(judged, sources), judged.stale


def _tests(directory: Path) -> str:
    """Return what was run."""
    runs = [json.loads(line) for line in (directory / "tests").read_text().splitlines()]
    fast = {test for slow, *tests in runs for test in tests if not slow}
    slow = {test for slow, *tests in runs for test in tests if slow}
    return "; ".join(
        f"{kind} of {', '.join(sorted(_without_repeated(tests)))}"
        for kind, tests in (("tests", fast), ("slow tests", slow))
        if tests
    )


def _without_repeated(tests: set[str]) -> set[str]:
    """Return tests without files of directories that were run, too."""
    return {test for test in tests if str(Path(test).parent) not in tests}


def _python(directory: Path) -> str:
    """Return the figures of Python; empty if there are none."""
    if not list(directory.glob("python*")):
        return ""
    settings = f"--rcfile={directory / 'coveragerc'}"
    coverage_py = [sys.executable, "-m", "coverage"]
    if list(directory.glob("python.*")):
        subprocess.run([*coverage_py, "combine", "--append", "-q", settings], check=True)
    for damaged in directory.glob("python.*"):
        damaged.unlink()  # its process was killed while it wrote; combine would fail the next time
    output = directory / "python.json"
    subprocess.run([*coverage_py, "json", "-q", settings, "-o", str(output)], check=True)
    text = report.rooms(output)
    output.unlink()
    return text


if __name__ == "__main__":
    sys.exit(main())
