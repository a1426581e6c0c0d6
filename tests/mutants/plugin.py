"""``pytest -p tests.mutants.plugin``: for each change, run the tests that reach it.

The process collects the tests once. A change has one or two stages of packet tests: first a single
changed program and a few tests, which most changes do not survive; then all programs that have the
line. A stage of lab tests follows: agents load the changed programs from a file, as they load what
came with an image. For each stage a child compiles the changed programs, enters a sandbox of its
own, and runs tests until one fails. What the child has done ends with the child.
"""

from __future__ import annotations

import hashlib
import json
import os
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from bpfsvc.base.errors import SystemUnfit
from bpfsvc.base.map_sizes import Sizes
from bpfsvc.datapath.loader import builder
from bpfsvc.datapath.loader.bytecode import Bytecode, Program
from bpfsvc.datapath.loader.bytecode_cache import BytecodeCache
from bpfsvc.datapath.loader.compiler_process import compile_source
from bpfsvc.datapath.loader.source import CSource, load
from bpfsvc.devtools.lab import sandbox
from tests.mutants.build import compile_programs
from tests.mutants.child import LONGEST, in_child, lab_limit, run_until_failure

JOBS, RESULTS = "BPFSVC_MUTANTS_JOBS", "BPFSVC_MUTANTS_RESULTS"
"""Variables with the names of the files with changes to try, and of what became of them."""
UNTIL = "BPFSVC_MUTANTS_UNTIL"
"""The variable with the time after which no other change is tried."""

Runner = Callable[[list[Program], list[pytest.Item]], dict[str, Any]]
"""Runs tests with programs in place of the usual ones."""


def pytest_runtestloop(session: pytest.Session) -> bool:
    """Try the changes in place of running the tests."""
    items = {item.nodeid: item for item in session.items}
    source = load(Sizes())
    base = Bytecode.decode(
        (sandbox.COMPILED / f"{source.code_digest}.bytecode").read_bytes(), source.code_digest
    )
    deadline = float(os.environ.get(UNTIL, "inf"))
    unchanged: dict[str, str] = {}
    with Path(os.environ[RESULTS]).open("a") as results:
        for line in Path(os.environ[JOBS]).read_text().splitlines():
            if time.time() > deadline:
                break
            job = json.loads(line)
            for (programs, names), run, longest in _stages(job, base):
                tests = [items[name] for name in names if name in items]
                known = unchanged.get(" ".join(programs), "")
                change = _Change(job["at"], job["after"], set(programs))
                work = partial(_try, change, tests, source, base, known, run)
                answer = in_child(work, longest)
                unchanged[" ".join(programs)] = answer.pop("unchanged", known)
                if answer["state"] not in ("survived", "same code"):
                    break
            results.write(json.dumps({**answer, "number": job["number"]}) + "\n")
            results.flush()
    return True


Stage = tuple[list[str], list[str]]
"""Programs to compile, and names of tests."""


def _stages(job: dict[str, Any], base: Bytecode) -> Iterator[tuple[Stage, Runner, float]]:
    """Yield the stages of a change, each with what runs its tests, and its longest time."""
    for stage in job["stages"]:
        yield stage, partial(_run, base.layout.digest), LONGEST
    if job["lab"]:
        yield (
            (job["stages"][-1][0], job["lab"]),
            partial(_run_in_lab, base),
            lab_limit(len(job["lab"])),
        )


class _Change(NamedTuple):
    """A line of the whole text, what stands in its place, and the programs that are compiled."""

    at: int
    after: str
    programs: set[str]


def _try(
    change: _Change,
    tests: list[pytest.Item],
    source: CSource,
    base: Bytecode,
    unchanged: str,
    run: Runner,
) -> dict[str, Any]:
    """Return what became of a change.

    ``unchanged``: the digest of the same programs without it, or nothing if they have not been
    compiled yet: only survivors are compared. The whole build has other code: what the compiler
    makes of a program depends on those that it compiles together with it.
    """
    lines = source.text.split("\n")
    lines[change.at] = change.after
    compiled = partial(_compiled, source, base=base, names=change.programs)
    try:
        made = compiled("\n".join(lines))
    except Exception:
        return {"state": "does not compile"}
    answer = run(made, tests)
    if answer["state"] != "survived" or not change.programs:
        return answer
    unchanged = unchanged or _digest(compiled(source.text))
    state = "same code" if _digest(made) == unchanged else "survived"
    return {**answer, "state": state, "unchanged": unchanged}


def _compiled(source: CSource, text: str, base: Bytecode, names: set[str]) -> list[Program]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return compile_programs(source, text, base, names)


def _digest(programs: list[Program]) -> str:
    return hashlib.sha256(repr(programs).encode()).hexdigest()


def _run(digest: str, made: list[Program], tests: list[pytest.Item]) -> dict[str, Any]:
    """Run packet tests with other programs, until one fails."""
    _use({program.name: program for program in made}, digest)
    sandbox._move_in(sandbox._private_mounts())
    return run_until_failure(tests)


def _run_in_lab(base: Bytecode, made: list[Program], tests: list[pytest.Item]) -> dict[str, Any]:
    """Run lab tests whose agents load other programs, until one fails twice.

    A lab test depends on time: a single failure may have another cause. An agent removes the file
    if the kernel refuses a program of it.
    """
    changed = {program.name: program for program in made}
    programs = tuple(changed.get(program.name, program) for program in base.programs)
    content = replace(base, programs=programs).encode()
    with tempfile.TemporaryDirectory(prefix="bpfsvc-mutant-") as name:
        file = Path(name) / f"{base.layout.digest}.bytecode"
        file.write_bytes(content)
        sandbox._move_in(sandbox._private_mounts())
        sandbox.COMPILED = file.parent
        answer = run_until_failure(tests, twice=True)
        is_used = file.exists() and file.read_bytes() == content
    return answer if is_used else {"state": "refused"}


def _use(changed: dict[str, Program], digest: str) -> None:
    """Have this process load other programs in the build of these sources.

    It is compiled once; where the kernel refuses a program, it would be compiled again.
    """
    sized = Bytecode.sized

    def other(self: Bytecode, *arguments: Any) -> Bytecode:
        if self.layout.digest != digest:
            return sized(self, *arguments)
        programs = tuple(changed.get(program.name, program) for program in self.programs)
        return sized(replace(self, programs=programs), *arguments)

    def compile_other(source: CSource, unwanted: Callable[[], bool]) -> bytes:
        if source.code_digest == digest:
            raise SystemUnfit("the kernel refuses the program")
        return compile_source(source, unwanted)

    patch = pytest.MonkeyPatch()
    patch.setattr(Bytecode, "sized", other)
    patch.setattr(BytecodeCache, "discard", lambda _: None)
    patch.setattr(builder, "compile_source", compile_other)
