"""``pytest -p tests.mutants.python_plugin``: put changed code into functions, one at a time.

The functions are those that the tests have imported already, so nothing is imported anew.
"""

from __future__ import annotations

import importlib
import inspect
import json
import os
import random
import time
from functools import partial
from pathlib import Path
from types import FunctionType
from typing import Any

import pytest

from tests.mutants.child import in_child, run_until_failure
from tests.mutants.plugin import JOBS, RESULTS, UNTIL
from tests.mutants.python_changes import Change, changed_code
from tests.mutants.reach import varied


def pytest_runtestloop(session: pytest.Session) -> bool:
    """Try the changes in place of running the tests."""
    items = {item.nodeid: item for item in session.items}
    tests = [items[name] for name in varied(items, random.Random(1))]
    deadline = float(os.environ.get(UNTIL, "inf"))
    with Path(os.environ[RESULTS]).open("a") as results:
        for line in Path(os.environ[JOBS]).read_text().splitlines():
            if time.time() > deadline:
                break
            number, fields = json.loads(line)
            change = Change(*fields) if fields else None
            answer = in_child(partial(_try, change, tests))
            results.write(json.dumps({**answer, "number": number}) + "\n")
            results.flush()
    return True


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
