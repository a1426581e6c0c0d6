"""What became of changes in earlier runs of ``make mutants``."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from tests.mutants.c_changes import Change, numbered

Answer = dict[str, Any]

SURVIVED: Answer = {"state": "survived"}
"""No test has seen the change."""


def identities(every: Iterable[Change]) -> dict[Change, str]:
    """Return a name of each change that stays when other lines of the file change."""
    return {
        change: json.dumps([*text, number])
        for change, text, number in numbered(
            every, lambda change: (change.file, change.before, change.after)
        )
    }


def sample(every: Iterable[Change], seed: int, count: int) -> list[Change]:
    """Return so many changes; when the sources change, nearly the same ones."""
    named = identities(every)
    place = {
        change: hashlib.sha256(f"{seed} {name}".encode()).digest() for change, name in named.items()
    }
    return sorted(place, key=lambda change: place[change])[:count]


class Record:
    """The answers of earlier runs in a file, by the identities of their changes."""

    def __init__(self, path: Path, every: Iterable[Change]) -> None:
        self._path = path
        self._identities = identities(every)
        self._answers: dict[str, Answer] = json.loads(path.read_text()) if path.exists() else {}

    def answers(self, changes: Iterable[Change]) -> dict[Change, Answer]:
        """Return what became of the changes that were tried; of survivors :data:`SURVIVED`."""
        known = {change: self._answers.get(self._identities[change]) for change in changes}
        return {
            change: SURVIVED if answer["state"] == "survived" else answer
            for change, answer in known.items()
            if answer is not None
        }

    def keep(self, answers: Mapping[Change, Answer]) -> None:
        """Write the answers of a run, beside those of earlier runs."""
        self._answers |= {self._identities[change]: answer for change, answer in answers.items()}
        self._path.parent.mkdir(parents=True, exist_ok=True)
        self._path.write_text(json.dumps(self._answers, indent=1, sort_keys=True) + "\n")
