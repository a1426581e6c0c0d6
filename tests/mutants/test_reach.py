"""Which tests a line has, by what make coverage has noted."""

from __future__ import annotations

import json
import random
from pathlib import Path

import pytest

from tests.branches.outcomes import Sources
from tests.branches.recorder import PLACES
from tests.mutants.reach import Reach

SOURCES = """\
static inline int double_of(int number)
{
	return number * 2;
}

static inline int wrapped(int number)
{
	return double_of(number) + 1;
}

static inline int chosen(int number)
{
	if (number > 3)
		return wrapped(number);
	return 0;
}

static inline int unused(int number)
{
	return number;
}
"""


@pytest.fixture
def reach(tmp_path: Path) -> Reach:
    """The only branch is that of ``chosen``; a test has seen each side."""
    (tmp_path / "a.h").write_text(SOURCES)
    (tmp_path / PLACES).write_text(json.dumps({"ingress": [0, [["a.h", 13, 2]]]}))
    seen = [["tests/packets/test_a.py::low", [0]], ["tests/lab/test_a.py::high", [1]]]
    (tmp_path / "0.seen").write_text("".join(f"{json.dumps(line)}\n" for line in seen))
    return Reach(tmp_path, Sources(tmp_path))


@pytest.mark.parametrize("line", [3, 8, 13, 14])
def test_a_function_without_a_branch_has_the_tests_of_its_calls(reach: Reach, line: int) -> None:
    tests = reach.tests("a.h", line, 10, random.Random(1))
    assert sorted(tests) == ["tests/lab/test_a.py::high", "tests/packets/test_a.py::low"]
    assert reach.programs("a.h", line) == {"ingress"}
    assert reach.busiest("a.h", line, tests) == ("ingress", tests)


def test_what_nothing_calls_has_no_tests(reach: Reach) -> None:
    assert reach.tests("a.h", 20, 10, random.Random(1)) == []
    assert reach.busiest("a.h", 20, []) == ("", [])
