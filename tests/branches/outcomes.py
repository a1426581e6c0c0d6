"""From marks of programs to outcomes of conditions in the C sources.

The compiler puts one condition into many programs, and may turn it around in each: "jump if zero"
here, "jump if not zero" there. So a jump is read as a question and the two sides of its answer, and
an outcome of a condition is seen if any copy of it has seen this side. A copy may also ask another
question: what is known to be 0 there is compared with nothing. Which side of one question is which
of another, nobody tells, so one question speaks for the condition: that whose sides were seen most.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from tests.branches.places import Branch

_EQUAL, _ABOVE, _AT_LEAST, _BITS, _UNEQUAL = 0x10, 0x20, 0x30, 0x40, 0x50
_SIGNED_ABOVE, _SIGNED_AT_LEAST = 0x60, 0x70
_BELOW, _AT_MOST, _SIGNED_BELOW, _SIGNED_AT_MOST = 0xA0, 0xB0, 0xC0, 0xD0
_UPWARD = (_ABOVE, _AT_LEAST, _SIGNED_ABOVE, _SIGNED_AT_LEAST)
_STRICT = (_ABOVE, _BELOW, _SIGNED_ABOVE, _SIGNED_BELOW)

_FUNCTION = re.compile(r"(\w+)\(")


def sides(branch: Branch) -> tuple[str, str]:
    """Return what holds where a jump is not taken, and where it is."""
    operation, by_register = branch.operation & 0xF0, branch.operation & 8
    if operation == _BITS:
        return "no bit", "a bit"
    if operation in (_EQUAL, _UNEQUAL):
        if by_register or branch.number:
            equal, unequal = "equal", "not equal"
        else:
            equal, unequal = "zero", "not zero"
        return (unequal, equal) if operation == _EQUAL else (equal, unequal)
    if by_register:
        # "a > b" may stand as "b < a": what stays is on which side they may be equal.
        strict, other = "strict", "not strict"
        return (other, strict) if operation in _STRICT else (strict, other)
    return ("less", "more") if operation in _UPWARD else ("more", "less")


class Outcome(NamedTuple):
    """One side of a condition. ``number``: of a case of a switch, else 0."""

    file: str
    line: int
    column: int
    number: int
    side: str


@dataclass(slots=True)
class Sources:
    """The C sources, as far as a report quotes them."""

    root: Path
    _lines: dict[str, list[str]] = field(default_factory=dict)

    def lines(self, file: str) -> list[str]:
        """Return the lines of a file."""
        if file not in self._lines:
            self._lines[file] = (self.root / file).read_text().splitlines()
        return self._lines[file]

    def text(self, outcome: Outcome) -> str:
        """Return the line of a condition, with ``¦`` before the operand or operator."""
        line, at = self.lines(outcome.file)[outcome.line - 1], outcome.column - 1
        return f"{line[:at]}¦{line[at:]}".strip().replace("\t", " ")

    def function(self, outcome: Outcome) -> str:
        """Return the name of the function around a condition."""
        return self.function_at(outcome.file, outcome.line)

    def function_at(self, file: str, line: int) -> str:
        """Return the name of the function around a line."""
        lines = self.lines(file)
        begin = next((n for n in range(line - 1, 0, -1) if lines[n] == "{"), 0)
        head = next((n for n in range(begin - 1, -1, -1) if lines[n][:1] not in ("\t", " ")), 0)
        match = _FUNCTION.search(lines[head])
        return match[1] if match else "?"

    def is_switch(self, file: str, line: int, column: int) -> bool:
        """True if a jump belongs to a switch, whose cases all have its place."""
        return self.lines(file)[line - 1][column - 1 :].startswith("switch")


@dataclass(frozen=True, slots=True)
class Coverage:
    """What a run has seen. ``impossible``: the verifier has proved it, in every copy."""

    seen: frozenset[Outcome]
    unseen: frozenset[Outcome]
    impossible: frozenset[Outcome]
    raw_seen: int
    raw_kept: int
    raw_impossible: int


def numbered_outcomes(places: Path, sources: Sources) -> list[Outcome | None]:
    """Return the outcome of each mark, in the order of marks; None if it has no place."""
    outcomes: list[Outcome | None] = []
    for _, jumps in json.loads(places.read_text()).values():
        for branch in (Branch(*fields) for fields in jumps):
            for side in sides(branch):
                if not branch.file:
                    outcomes.append(None)
                    continue
                where = branch.file, branch.line, branch.column
                number = branch.number if sources.is_switch(*where) else 0
                outcomes.append(Outcome(*where, number, side))
    return outcomes


def coverage(
    outcomes: list[Outcome | None], seen: set[int], kept: set[int], removed: set[int]
) -> Coverage:
    """Return what was seen, by the marks that were seen, kept and removed by the verifier."""
    removed = removed - kept
    all_seen = _of(outcomes, seen)
    possible = _of(outcomes, set(range(len(outcomes))) - removed)
    asked = _questions(outcomes, all_seen, possible)
    return Coverage(
        frozenset(asked & all_seen),
        frozenset(asked & possible - all_seen),
        frozenset(asked - possible),
        len(seen),
        len(outcomes) - len(removed),
        len(removed),
    )


def _questions(
    outcomes: list[Outcome | None], seen: set[Outcome], possible: set[Outcome]
) -> set[Outcome]:
    """Return the outcomes of the question that speaks for each condition."""
    conditions: dict[tuple[str, int, int, int], set[tuple[Outcome, Outcome]]] = {}
    for one_side, other_side in zip(outcomes[::2], outcomes[1::2], strict=True):
        if one_side and other_side:
            question = min(one_side, other_side), max(one_side, other_side)
            conditions.setdefault(one_side[:4], set()).add(question)

    def weight(question: tuple[Outcome, Outcome]) -> tuple[int, int, tuple[Outcome, Outcome]]:
        sides = set(question)
        return len(sides & seen), len(sides & possible), question

    return {side for questions in conditions.values() for side in max(questions, key=weight)}


def _of(outcomes: list[Outcome | None], marks: Iterable[int]) -> set[Outcome]:
    return {outcome for mark in marks if (outcome := outcomes[mark])}


def read_run(directory: Path) -> tuple[set[int], set[int], set[int]]:
    """Return the marks of a run: seen, kept by the verifier, removed by it."""
    seen: set[int] = set()
    kept: set[int] = set()
    removed: set[int] = set()
    for file in directory.glob("*.seen"):
        for line in file.read_text().splitlines():
            seen.update(json.loads(line)[1])
    for file in directory.glob("*.loaded"):
        stays, goes = json.loads(file.read_text())
        kept.update(stays)
        removed.update(goes)
    return seen, kept, removed
