"""Changes that no test can see, with the reason of each."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from functools import cache
from pathlib import Path
from typing import NamedTuple

import yaml

from tests.mutants.c_changes import Change

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


def places(every: Iterable[Change]) -> dict[Place, Change]:
    """Return all changes by their places."""
    seen: Counter[tuple[str, str, str]] = Counter()
    named = {}
    for change in every:
        text = (change.file, change.before.strip(), change.after.strip())
        named[Place(*text, seen[text])] = change
        seen[text] += 1
    return named


@cache
def table() -> dict[Place, str]:
    """Return the reasons by places."""
    return {
        Place(file, before, after, *(number or (0,))): group["reason"]
        for file, groups in yaml.safe_load(_FILE.read_text()).items()
        for group in groups
        for before, after, *number in group["changes"]
    }
