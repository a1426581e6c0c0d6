"""``make mutants``: put small faults into the C, one at a time, and see whether a test fails."""

from __future__ import annotations

import argparse
import json
import math
import os
import random
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any, NamedTuple

from bpfsvc.base.map_sizes import Sizes
from bpfsvc.datapath.loader import shipped
from bpfsvc.datapath.loader.source import CSource, load
from tests.branches.outcomes import Sources
from tests.docs.figures import write_section
from tests.mutants import python_changes, report
from tests.mutants.c_changes import Change, changes
from tests.mutants.explained import C_REASONS, PYTHON_REASONS, explained
from tests.mutants.plugin import JOBS, RESULTS, UNTIL
from tests.mutants.reach import Reach
from tests.mutants.record import SURVIVED, Record, sample

_TESTS = "tests/packets"
_NOT_FOR_MUTANTS = tuple(
    f"test_{name}.py"
    for name in (
        *("verifier", "bytecode", "bytecode_cache", "image_build", "sizes"),
        *("migration", "earlier_names"),
        *("recorded_decisions", "explain"),
    )
)
"""Tests that compile by themselves or compare code, and tests of what another process loads."""
_LAB = "tests/lab"
_IN_A_SANDBOX = ("-p", "bpfsvc.devtools.lab.pytest_plugin")
_LAB_TESTS_OF_TRAFFIC = (
    *("traffic_", "observe", "connect", "quarantine", "schedul", "spill", "udp_sockets"),
    *("context", "drops", "endpoint_removal", "explain", "failed"),
)
"""With what the names of files begin whose tests are about packets and sockets."""
PACKAGE = "bpfsvc.services"
_PYTHON_TESTS = (
    *("tests/services", "tests/cli/test_validate.py", "tests/specification"),
    *("tests/explain", "tests/metrics", "tests/agent"),
)
"""Tests of the package that load no program."""
_OF_PROGRAMS = "tests/agent/test_fast_path_guard.py"
"""The file of these folders that loads programs. It fails in a child of a process in a sandbox."""
_FIRST_TESTS = 20
"""Tests of a change in the first stage, with one changed program: it compiles in a few seconds."""
_LAB_TESTS = 10
"""Lab tests of a change: each file of them starts a lab of its own."""
_LOADS = (
    f"{_TESTS}/test_hairpin.py"
    "::test_without_the_flag_a_backend_reaches_itself_under_its_own_address[TCP/IPv4]"
)
"""The test of changes that no packet test reaches: it fails if the kernel refuses a program."""
_AT_ONCE = 25
"""Tests that are run without a change by one child."""


def main() -> int:
    """Try changes; list those that no test has seen."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--minutes", type=float, default=60.0)
    parser.add_argument("--seed", type=int, default=1, help="which changes, and in which order")
    parser.add_argument("--count", type=int, default=1000, help="changes at most")
    parser.add_argument("--tests", type=int, default=1200, help="tests of a change at most")
    parser.add_argument("--lab-tests", type=int, default=_LAB_TESTS, help="and so many lab tests")
    parser.add_argument("--workers", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--coverage", type=Path, default=Path("build/coverage"))
    parser.add_argument("--write", type=Path, metavar="FILE", help="put the figures there")
    parser.add_argument("--python", action="store_true", help="of bpfsvc/services, not of the C")
    parser.add_argument("--record", type=Path, default=Path("build/mutants.json"))
    parser.add_argument(
        "--again",
        action="store_true",
        help="only changes that no test of the runs in the record has seen; the figures are of all",
    )
    parser.add_argument(
        "--only", action="append", default=[], metavar="FILE[:LINE] or MODULE[:LINE]"
    )
    parser.add_argument(
        "--add",
        action="append",
        default=[],
        metavar="FILE",
        help="tests that the records of make coverage do not know, for every change",
    )
    arguments = parser.parse_args()
    return of_python(arguments) if arguments.python else of_c(arguments)


def of_python(arguments: argparse.Namespace) -> int:
    """Try changes of the rules for Services."""
    every = list(python_changes.changes(Path(), PACKAGE))
    chance = random.Random(arguments.seed)
    chosen = chance.sample(every, min(arguments.count, len(every)))
    if arguments.only:
        chosen = [change for change in every if is_within(change, arguments.only)]
    jobs = [json.dumps([n, change]) for n, change in enumerate((None, *chosen))]
    plugin = [*_IN_A_SANDBOX, "-p", "tests.mutants.python_plugin", "-m", "not slow"]
    plugin += ["--ignore", _OF_PROGRAMS]
    started = time.time()
    until = started + 60 * arguments.minutes
    with tempfile.TemporaryDirectory(prefix="bpfsvc-mutants-") as name:
        answers = _run(Path(name), jobs, arguments.workers, until, [*plugin, *_PYTHON_TESTS])
    without_change = answers.pop(0, {})
    if without_change.get("state") != "survived":
        print(f"without a change: {without_change}", file=sys.stderr)
        return 2
    answered = {chosen[number - 1]: answer for number, answer in answers.items()}
    tried = explained(answered, every, PYTHON_REASONS)
    minutes = (time.time() - started) / 60
    text = report.python_figures(tried, len(every), minutes, arguments)
    print(text)
    print(report.python_survivors(tried))
    if arguments.write:
        write_section(arguments.write, "make mutants of Python", text)
    return 0


def of_c(arguments: argparse.Namespace) -> int:
    """Try changes of the programs."""
    source = load(Sizes())
    if not (arguments.coverage / "places.json").exists():
        print(f"no records in {arguments.coverage}: run make coverage first", file=sys.stderr)
        return 2
    chance = random.Random(arguments.seed)
    reach = Reaches(
        Reach(arguments.coverage, Sources(source.root), _is_packet_test),
        Reach(arguments.coverage, Sources(source.root), _is_lab_test),
    )
    every = list(changes(source.root))
    record = Record(arguments.record, every)
    chosen = sample(every, arguments.seed, arguments.count)
    if arguments.only:
        chosen = [change for change in every if is_within(change, arguments.only)]
    answered = record.answers(chosen) if arguments.again else {}
    known = dict(explained(answered, every, C_REASONS))
    rest = [change for change in chosen if known.get(change, SURVIVED) == SURVIVED]
    jobs, unreached = _jobs(rest, reach, source, arguments, chance)
    started = time.time()
    answers = _work(jobs, arguments.workers, started + 60 * arguments.minutes)
    if unsound := _failing_without_change(answers, arguments.workers):
        print("fail without a change, and count for nothing:", *unsound, sep="\n  ")
        answers = {n: answer for n, answer in answers.items() if answer.get("by") not in unsound}
    new = {rest[number]: answer for number, answer in answers.items()}
    record.keep(new)
    minutes = (time.time() - started) / 60
    tried = explained(answered | new, every, C_REASONS)
    text = report.figures(tried, unreached, len(every), minutes, arguments)
    print(text)
    print(report.survivors(tried))
    if arguments.write:
        write_section(arguments.write, "make mutants", text)
    return 0


def _is_packet_test(name: str) -> bool:
    return name.startswith(_TESTS) and not any(file in name for file in _NOT_FOR_MUTANTS)


def _is_lab_test(name: str) -> bool:
    return name.startswith(tuple(f"{_LAB}/test_{start}" for start in _LAB_TESTS_OF_TRAFFIC))


class Reaches(NamedTuple):
    """What packet tests reach, and what lab tests reach."""

    packets: Reach
    lab: Reach


def is_within(change: Change | python_changes.Change, places: list[str]) -> bool:
    """Return whether a change is in one of these files or modules, or on one of these lines."""
    return not {change.file, f"{change.file}:{change.line}"}.isdisjoint(places)


def nodes_of(files: list[str]) -> list[str]:
    """Return the tests of files, as pytest names them."""
    if not files:
        return []
    asked = [sys.executable, "-m", "pytest", "-q", "--collect-only", "-m", "not slow", *files]
    listed = subprocess.run(asked, capture_output=True, text=True, check=True).stdout
    return [line for line in listed.splitlines() if "::" in line]


def _jobs(
    chosen: list[Change],
    reaches: Reaches,
    source: CSource,
    arguments: argparse.Namespace,
    chance: random.Random,
) -> tuple[list[dict[str, Any]], list[Change]]:
    """Return what the workers do, and the changes that no test reaches."""
    lines = source.text.split("\n")
    where = _lines_of(lines)
    jobs: list[dict[str, Any]] = []
    unreached: list[Change] = []
    every_added = nodes_of(arguments.add)
    added_in_lab = [name for name in every_added if name.startswith(_LAB)]
    added = [name for name in every_added if name not in added_in_lab]
    reach = reaches.packets
    for number, change in enumerate(chosen):
        names = reach.tests(change.file, change.line, arguments.tests, chance)
        in_lab = [
            *added_in_lab,
            *reaches.lab.tests(change.file, change.line, arguments.lab_tests, chance),
        ]
        if not (names or in_lab or added):
            unreached.append(change)
            continue
        programs = sorted(reach.programs(change.file, change.line))
        stages = [(programs, [*added, *names] or [_LOADS])]
        program, its_tests = reach.busiest(change.file, change.line, names)
        if its_tests and not added and programs != [program]:
            stages.insert(0, ([program], its_tests[:_FIRST_TESTS]))
        at = where[change.file, change.line]
        assert lines[at] == change.before, change
        jobs.append(
            {
                "number": number,
                "at": at,
                "after": change.after,
                "stages": stages,
                "lab": in_lab,
            }
        )
    return jobs, unreached


def _failing_without_change(answers: dict[int, dict[str, Any]], workers: int) -> list[str]:
    """Return the tests that have seen a change, but fail without any, too."""
    names = sorted({answer["by"] for answer in answers.values() if "by" in answer})
    failing: list[str] = []
    while names:
        parts = [names[at : at + _AT_ONCE] for at in range(0, len(names), _AT_ONCE)]
        jobs = [_without_change(number, part) for number, part in enumerate(parts)]
        # After a test that fails, a child goes no further.
        failed = {answer.get("by", "") for answer in _work(jobs, workers, math.inf).values()} - {""}
        failing += sorted(failed)
        names = [name for part in parts if failed & {*part} for name in part if name not in failed]
    return failing


def _without_change(number: int, names: list[str]) -> dict[str, Any]:
    first = load(Sizes()).text.split("\n")[0]
    in_lab = [name for name in names if name.startswith(_LAB)]
    packets = [name for name in names if name not in in_lab]
    return {"number": number, "at": 0, "after": first, "stages": [([], packets)], "lab": in_lab}


def _lines_of(text: list[str]) -> dict[tuple[str, int], int]:
    """Return where in the whole text each line of each file is."""
    where: dict[tuple[str, int], int] = {}
    file, number = "", 0
    for at, line in enumerate(text):
        if line.startswith("#line "):
            _, begin, quoted = line.split(maxsplit=2)
            file, number = quoted.strip('"'), int(begin) - 1
        else:
            number += 1
            where[file, number] = at
    return where


def _work(jobs: list[dict[str, Any]], workers: int, until: float) -> dict[int, dict[str, Any]]:
    """Have pytest processes try changes; return what became of them, by their numbers."""
    with tempfile.TemporaryDirectory(prefix="bpfsvc-mutants-") as name:
        directory = Path(name)
        shipped.ship(directory / "compiled")
        plugins = [*_IN_A_SANDBOX, "-p", "tests.mutants.plugin"]
        return _run(
            directory, list(map(json.dumps, jobs)), workers, until, [*plugins, _TESTS, _LAB]
        )


def _run(
    directory: Path, jobs: list[str], workers: int, until: float, options: list[str]
) -> dict[int, dict[str, Any]]:
    """Have pytest processes do jobs, each a share of them; return the answers by their numbers."""
    running = []
    for worker in range(workers):
        mine = directory / f"{worker}.jobs"
        mine.write_text("".join(f"{job}\n" for job in jobs[worker::workers]))
        environment = {
            **os.environ,
            JOBS: str(mine),
            RESULTS: str(directory / f"{worker}.results"),
            UNTIL: str(until),
            "BPFSVC_LAB_COMPILED": str(directory / "compiled"),
        }
        command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *options]
        running.append(subprocess.Popen(command, env=environment))
    for process in running:
        process.wait()
    lines = [line for file in directory.glob("*.results") for line in file.read_text().splitlines()]
    return {answer["number"]: answer for answer in map(json.loads, lines)}


if __name__ == "__main__":
    sys.exit(main())
