"""``pytest -p tests.mutants.python_plugin``: put changed code into functions, one at a time.

The functions are those that the tests have imported already, so nothing is imported anew. All tests
run once without a change: they show which functions each of them calls. A change meets the tests
that call the changed function, those of the fewest functions first.
"""

from __future__ import annotations

import importlib
import inspect
import json
import os
import random
import sys
import tempfile
import time
from collections.abc import Iterable
from functools import partial
from pathlib import Path
from types import CodeType, FrameType, FunctionType
from typing import Any

import pytest

from tests.mutants.child import in_child, run_until_failure
from tests.mutants.plugin import JOBS, RESULTS, UNTIL
from tests.mutants.python_changes import Change, changed_code
from tests.mutants.reach import varied

_LONGEST_OF_ALL = 900.0
"""Seconds that all tests may take under a profiler."""


def pytest_runtestloop(session: pytest.Session) -> bool:
    """Try the changes in place of running the tests."""
    items = {item.nodeid: item for item in session.items}
    tests = [items[name] for name in varied(items, random.Random(1))]
    calls = _calls(tests)
    deadline = float(os.environ.get(UNTIL, "inf"))
    with Path(os.environ[RESULTS]).open("a") as results:
        for line in Path(os.environ[JOBS]).read_text().splitlines():
            if time.time() > deadline:
                break
            number, fields = json.loads(line)
            change = Change(*fields) if fields else None
            callers = _callers(tests, calls, _name(change)) if change else tests
            answer = in_child(partial(_try, change, callers))
            results.write(json.dumps({**answer, "number": number}) + "\n")
            results.flush()
    return True


def _calls(tests: list[pytest.Item]) -> list[set[str]]:
    """Return the names of the functions that each test calls, in the order of the tests."""
    with tempfile.NamedTemporaryFile("w+") as noted:
        in_child(partial(_note_calls, tests, Path(noted.name)), _LONGEST_OF_ALL)
        calls = [set(json.loads(line)) for line in noted]
    assert len(calls) == len(tests), "the tests take too long, or end the process"
    return calls


def _note_calls(tests: list[pytest.Item], path: Path) -> dict[str, Any]:
    """Run tests; write the names of the functions that each of them calls, a line for each."""
    called: set[CodeType] = set()

    def profile(frame: FrameType, event: str, _: object) -> None:
        if event == "call":
            called.add(frame.f_code)

    with path.open("w") as noted:
        for test in tests:
            called.clear()
            _forget_results()
            sys.setprofile(profile)
            run_until_failure([test])
            sys.setprofile(None)
            noted.write(json.dumps(sorted(_names(called, "bpfsvc."))) + "\n")
    return {}


def _forget_results() -> None:
    """Have functions called again whose results an earlier test has left in a cache."""
    for name, module in tuple(sys.modules.items()):
        for value in vars(module).values() if name.startswith("bpfsvc.") else ():
            if hasattr(value, "cache_clear"):
                value.cache_clear()


def _names(called: Iterable[CodeType], package: str) -> set[str]:
    """Return the names of the functions of a package; an inner function counts as the outer one.

    A test may have imported their modules.
    """
    modules = {
        getattr(module, "__file__", None): name
        for name, module in sys.modules.items()
        if name.startswith(package)
    }
    return {
        f"{modules[code.co_filename]}:{code.co_qualname.split('.<locals>')[0]}"
        for code in called
        if code.co_filename in modules
    }


def _name(change: Change) -> str:
    return f"{change.module}:{change.function}"


def _callers(tests: list[pytest.Item], calls: list[set[str]], function: str) -> list[pytest.Item]:
    """Return the tests that call the function, those first that call the fewest functions."""
    callers = [pair for pair in zip(tests, calls, strict=True) if function in pair[1]]
    return [test for test, _ in sorted(callers, key=lambda pair: len(pair[1]))]


def _try(change: Change | None, tests: list[pytest.Item]) -> dict[str, Any]:
    """Return what became of a change; None is none."""
    if change:
        module = importlib.import_module(change.module)
        function = _function(module, change.function)
        if function is None:
            return {"state": "no function"}
        code = changed_code(Path(inspect.getfile(module)), change)
        if code.co_freevars != function.__code__.co_freevars:
            return {"state": "no function"}
        function.__code__ = code
    return run_until_failure(tests)


def _function(module: Any, name: str) -> FunctionType | None:
    """Return the function of this name; None if it is not what the module has under it."""
    at: Any = module
    for part in name.split("."):
        at = inspect.getattr_static(at, part, None)
    for attribute in ("fget", "__func__", "func", "__wrapped__"):
        at = getattr(at, attribute, None) or at
    return at if isinstance(at, FunctionType) else None
