"""What the run of CI says about a stage that failed: its last lines are all that is read."""

from __future__ import annotations

import subprocess

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
