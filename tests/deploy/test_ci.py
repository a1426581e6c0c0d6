"""What the run of CI says about a stage that failed: its last lines are all that is read."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.deploy.rendered import ROOT

PYTEST = """
==================================== ERRORS ====================================
_________________ ERROR at setup of test_second[TCP/IPv4] __________________
tests/a/test_b.py:9: in node
E   OSError: no node
=================================== FAILURES ===================================
_ test_first[a wrong - text] _
    def test_first() -> None:
>       helper()
tests/a/test_b.py:20:
tests/a/helper.py:7: in helper
E       AssertionError: no answer
E       assert 1 == 2
tests/a/helper.py:7: AssertionError
=========================== short test summary info ============================
FAILED tests/a/test_b.py::test_first[a wrong - text] - AssertionError: no answer
ERROR tests/a/test_b.py::test_second[TCP/IPv4] - OSError: no node
make: *** [Makefile:90: test] Error 1
"""

AGAIN = f"""{PYTEST}
make: tests failed; once more, by themselves:
=================================== FAILURES ===================================
_________________________________ test_third __________________________________
tests/a/test_c.py:5: TimeoutError
E   TimeoutError: not ready
FAILED tests/a/test_c.py::test_third - TimeoutError: not ready
make: *** [Makefile:90: test] Error 1
"""

LINT = """
bpfsvc/x.py:12: error: Name "y" is not defined
Found 1 error in 1 file
make: *** [Makefile:127: lint] Error 1
"""

RUFF = """
F401 `os` imported but unused
 --> tests/a.py:3:1
make: *** [Makefile:127: lint] Error 1
"""

CLUSTER = """
FAILED load: endpoints come and go
  3 of 400 requests failed
Error: cases failed, see above
make: *** [Makefile:101: cluster-test] Error 1
"""


@pytest.mark.parametrize(
    ("output", "line"),
    [
        (
            PYTEST,
            "tests/a/test_b.py:20: tests/a/test_b.py::test_first[a wrong - text]: "
            "AssertionError: no answer",
        ),
        (AGAIN, "tests/a/test_c.py:5: tests/a/test_c.py::test_third: TimeoutError: not ready"),
        (LINT, 'bpfsvc/x.py:12: error: Name "y" is not defined'),
        (RUFF, "tests/a.py:3: F401 `os` imported but unused"),
        (CLUSTER, "load: endpoints come and go: 3 of 400 requests failed"),
        ("no compiler\nmake: *** [Makefile:9: slow] Error 2\n", None),
    ],
    ids=["pytest", "once more", "mypy", "ruff", "cluster", "nothing known"],
)
def test_the_first_failure_is_found_in_the_output_of_a_stage(output: str, line: str | None) -> None:
    program = str(ROOT / ".ci" / "first_failure.awk")
    done = subprocess.run(
        ["awk", "-f", program], input=output, capture_output=True, text=True, check=True
    )
    assert done.stdout == f"{line or 'make: *** [Makefile:9: slow] Error 2: no compiler'}\n"


MAKE = """#!/bin/bash
# Stands for make: notes what begins and ends. A stage of $TOGETHER ends when all of these go on.
echo "begin $1" >>events
if [[ " $TOGETHER " == *" $1 "* ]]; then
	for stage in $TOGETHER; do
		until grep -q "begin $stage" events; do sleep 0.01; done
	done
fi
echo "end $1" >>events
echo "= 1 of $1 in 0.1s ="
[ "$1" != "$BROKEN" ] || { echo "FAILED tests/$1.py::test_$1"; exit 2; }
"""

TIMEOUT = """#!/bin/bash
# Stands for timeout: a stage that is $CUT reaches the limit.
"${@:4}"
status=$?
[ "$5" != "$CUT" ] || exit 124
exit "$status"
"""


class Run:
    """A run of CI with stand-ins for make and timeout, in a copy."""

    def __init__(self, directory: Path, **environment: str) -> None:
        checkout = directory / "checkout"
        shutil.copytree(ROOT / ".ci", checkout / ".ci")
        (directory / "shared" / "kubernetes").mkdir(parents=True)
        programs = directory / "bin"
        programs.mkdir()
        for name, text in {"make": MAKE, "timeout": TIMEOUT}.items():
            (programs / name).write_text(text)
            (programs / name).chmod(0o755)
        path = f"{programs}:{os.environ['PATH']}"
        done = subprocess.run(
            [checkout / ".ci" / "run"],
            env={**os.environ, "PATH": path, **environment},
            capture_output=True,
            text=True,
            check=False,
            timeout=60,
        )
        self.status = done.returncode
        self.events = (checkout / "events").read_text().splitlines()
        self.last_lines = done.stdout.split("\n\n")[-1].splitlines()


def test_all_stages_run_and_the_emulated_kernels_beside_the_api_server(tmp_path: Path) -> None:
    run = Run(tmp_path, TOGETHER="kernels api-test")
    alone = ("test", "slow", "cluster-test")
    assert run.status == 0, run.last_lines
    assert run.events[:6] == [f"{what} {stage}" for stage in alone for what in ("begin", "end")]
    assert {*run.events[6:8]} == {"begin kernels", "begin api-test"}
    assert {*run.events[8:]} == {"end kernels", "end api-test"}
    assert [re.sub(r"\d+ minutes", "? minutes", line) for line in run.last_lines] == [
        f"make {stage}, ? minutes: = 1 of {stage} in 0.1s ="
        for stage in (*alone, "api-test", "kernels")
    ]


@pytest.mark.parametrize(
    ("broken", "not_run"),
    [("slow", ("cluster-test", "kernels", "api-test")), ("api-test", ()), ("kernels", ())],
    ids=["slow", "api-test", "kernels"],
)
def test_a_failed_stage_is_named_first_and_is_the_last(
    tmp_path: Path, broken: str, not_run: tuple[str, ...]
) -> None:
    run = Run(tmp_path, BROKEN=broken)
    first, *others = run.last_lines
    assert run.status == 2
    assert first == f"FAILED: make {broken} (status 2): tests/{broken}.py::test_{broken}"
    assert [line for line in others if "NOT RUN" in line] == [
        f"make {stage}: NOT RUN after the failure" for stage in not_run
    ]
    assert run.events.count("begin kernels") == ("kernels" not in not_run)


def test_a_stage_that_the_time_limit_cuts_off_is_noted_and_has_failed_if_a_test_has(
    tmp_path: Path,
) -> None:
    passed, failed = tmp_path / "passed", tmp_path / "failed"
    run = Run(passed, CUT="kernels")
    assert run.status == 0
    assert re.sub(r"\d+ minutes", "? minutes", run.last_lines[-1]) == (
        "make kernels: NOT FINISHED after ? minutes, at the time limit: = 1 of kernels in 0.1s ="
    )
    run = Run(failed, CUT="slow", BROKEN="slow")
    assert run.status == 124
    assert run.last_lines[0] == "FAILED: make slow (status 124): tests/slow.py::test_slow"
