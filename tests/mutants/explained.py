"""Changes that no test can see, with the reason of each."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import yaml

from tests.mutants.c_changes import Change, numbered

_FILE = Path(__file__).with_suffix(".yaml")


class Place(NamedTuple):
    """A line of a file, what stands in its place, and which of several equal lines it is."""

    file: str
    before: str
    after: str
    number: int


def reasons(every: Iterable[Change]) -> dict[Change, str]:
    """Return why no test can see a change, of all changes of which that is known."""
    named = places(every)
    return {change: table()[place] for place, change in named.items() if place in table()}


def explained(
    tried: Mapping[Change, dict[str, Any]], every: Iterable[Change]
) -> list[tuple[Change, dict[str, Any]]]:
    """Return what became of changes; a survivor that has a reason is ``explained``."""
    known = reasons(every)
    return [
        (
            change,
            {"state": "explained"} if answer["state"] == "survived" and change in known else answer,
        )
        for change, answer in tried.items()
    ]


def places(every: Iterable[Change]) -> dict[Place, Change]:
    """Return all changes by their places."""
    return {
        Place(*text, number): change
        for change, text, number in numbered(
            every, lambda change: (change.file, change.before.strip(), change.after.strip())
        )
    }


@cache
def table() -> dict[Place, str]:
    """Return the reasons by places."""
    return {
        Place(file, before, after, *(number or (0,))): group["reason"]
        for file, groups in yaml.safe_load(_FILE.read_text()).items()
        for group in groups
        for before, after, *number in group["changes"]
    }
