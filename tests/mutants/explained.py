"""Changes that no test can see, with the reason of each."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import yaml

from tests.mutants import c_changes, python_changes
from tests.mutants.c_changes import numbered

C_REASONS = Path(__file__).with_name("explained.yaml")
PYTHON_REASONS = Path(__file__).with_name("explained_python.yaml")

_AnyChange = TypeVar("_AnyChange", c_changes.Change, python_changes.Change)


class Place(NamedTuple):
    """A file or module, what is changed there, and which of several equal changes it is."""

    file: str
    words: tuple[str, ...]
    number: int


def explained(
    tried: Mapping[_AnyChange, dict[str, Any]], every: Iterable[_AnyChange], reasons: Path
) -> list[tuple[_AnyChange, dict[str, Any]]]:
    """Return what became of changes; a survivor that has a reason is ``explained``."""
    known = {change for place, change in places(every).items() if place in table(reasons)}
    return [
        (
            change,
            {"state": "explained"} if answer["state"] == "survived" and change in known else answer,
        )
        for change, answer in tried.items()
    ]


def places(every: Iterable[_AnyChange]) -> dict[Place, _AnyChange]:
    """Return all changes by their places."""
    return {
        Place(*key, number): change
        for change, key, number in numbered(every, lambda change: (change.file, change.words))
    }


@cache
def table(path: Path) -> dict[Place, str]:
    """Return the reasons of a file by places. The number of a place is the last of its words."""
    return {
        Place(file, tuple(words), number): group["reason"]
        for file, groups in (yaml.safe_load(path.read_text()) or {}).items()
        for group in groups
        for words, number in map(_with_number, group["changes"])
    }


def _with_number(change: list[Any]) -> tuple[list[str], int]:
    return (change[:-1], change[-1]) if isinstance(change[-1], int) else (change, 0)
