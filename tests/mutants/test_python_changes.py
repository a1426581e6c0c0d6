"""Which changes there are of a Python function, and what it does with one of them."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path

import pytest

from tests.mutants.child import in_child
from tests.mutants.python_changes import Change, changes
from tests.mutants.python_plugin import _callers, _function, _names, _try

_SOURCE = '''\
"""A module."""
LIMIT = 3

def allowed(number: int, more: bool = False) -> bool:
    """Docstring."""
    return number < LIMIT or not more

class Counter:
    def __init__(self) -> None:
        self.count = 0

    def add(self) -> int:
        self.count += 2
        return self.count

    @property
    def empty(self) -> bool:
        return self.count == 0
'''


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    (tmp_path / "mutated").mkdir()
    (tmp_path / "mutated" / "one.py").write_text(_SOURCE)
    monkeypatch.syspath_prepend(tmp_path)
    importlib.invalidate_caches()
    for name in ("mutated", "mutated.one"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    return "mutated.one"


def test_bodies_of_functions_are_changed_and_nothing_else(module: str, tmp_path: Path) -> None:
    listed = [(change.function, change.kind) for change in changes(tmp_path, "mutated")]
    assert {change.module for change in changes(tmp_path, "mutated")} == {module}
    assert listed == [
        ("allowed", "Lt to LtE"),
        ("allowed", "no negation"),
        ("allowed", "and for or"),
        ("Counter.__init__", "a number more"),
        ("Counter.add", "no statement"),
        ("Counter.add", "a number more"),
        ("Counter.empty", "a number more"),
        ("Counter.empty", "Eq to NotEq"),
    ]


def test_a_function_that_is_imported_gets_the_changed_code(module: str, tmp_path: Path) -> None:
    imported = importlib.import_module(module)
    by_kind = {(change.function, change.kind): change for change in changes(tmp_path, "mutated")}
    allowed, counter = imported.allowed, imported.Counter()
    assert (allowed(3, True), counter.empty, counter.add()) == (False, True, 2)

    def put(function: str, kind: str) -> None:
        assert _try(by_kind[function, kind], []) == {"state": "survived"}

    put("allowed", "Lt to LtE")
    assert allowed(3, True)
    put("allowed", "and for or")
    assert (allowed(2, False), allowed(2, True), allowed(3, False)) == (True, False, False)
    put("Counter.add", "no statement")
    assert counter.add() == 2
    put("Counter.empty", "Eq to NotEq")
    assert counter.empty


def test_what_is_no_function_is_left_alone(module: str) -> None:
    imported = importlib.import_module(module)
    assert _function(imported, "LIMIT") is None
    change = Change(module, "LIMIT", 0, 2, "a number more", "LIMIT = 3")
    assert _try(change, []) == {"state": "no function"}


def test_what_a_child_does_stays_there_and_what_does_not_end_is_ended() -> None:
    here: list[int] = []

    def work() -> dict[str, str]:
        here.append(1)
        return {"state": str(len(here))}

    def never() -> dict[str, str]:
        while True:
            here.append(1)
            here.clear()

    assert in_child(work)["state"] == "1"
    assert here == []
    assert in_child(never, longest=0.2)["state"] == "no end"
    assert in_child(lambda: {"state": str(1 // 0)})["state"] == "broken"


def test_a_function_within_a_function_counts_as_the_function_around_it() -> None:
    def inner() -> None: ...

    around = test_a_function_within_a_function_counts_as_the_function_around_it.__name__
    assert _names([inner.__code__], __package__) == {f"{__name__}:{around}"}


def test_a_change_meets_the_tests_that_call_its_function(
    request: pytest.FixtureRequest,
) -> None:
    other, many, few = (
        pytest.Function.from_parent(request.node.parent, name=name, callobj=lambda: None)
        for name in ("other", "many", "few")
    )
    calls = [{"one:b"}, {"one:a", "one:b"}, {"one:a"}]
    assert _callers([other, many, few], calls, "one:a") == [few, many]
