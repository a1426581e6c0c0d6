"""Which programs a line of C is in, and which tests reach it, as ``make coverage`` noted."""

from __future__ import annotations

import json
import random
import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from itertools import chain, zip_longest
from pathlib import Path

from tests.branches.outcomes import Sources
from tests.branches.recorder import PLACES

_DEPTH = 4
"""How many calls lead from a branch to a function without a branch, at most."""

_CALL = re.compile(r"\b(\w+)\(")

Place = tuple[str, int]
"""A file, and a line in it."""


class Reach:
    """What a run of ``make coverage`` knows of each line."""

    def __init__(
        self, directory: Path, sources: Sources, is_used: Callable[[str], bool] = lambda _: True
    ) -> None:
        """``is_used``: which tests may be named."""
        places = json.loads((directory / PLACES).read_text())
        self._sources = sources
        self._calls = _calls(sources.root)
        self._programs: dict[tuple[str, str], set[str]] = defaultdict(set)
        self._of_file: dict[str, set[str]] = defaultdict(set)
        self._all = set(places)
        self._marks: dict[tuple[str, str], dict[int, set[int]]] = defaultdict(
            lambda: defaultdict(set)
        )
        self._program_of: dict[int, str] = {}
        mark = 0
        for program, (_, jumps) in places.items():
            for file, line, *_ in jumps:
                if file:
                    function = self._function(file, line)
                    self._programs[file, function].add(program)
                    self._of_file[file].add(program)
                    self._marks[file, function][line].update((mark, mark + 1))
                    self._program_of |= {mark: program, mark + 1: program}
                mark += 2
        self._tests: dict[int, list[str]] = defaultdict(list)
        for file in sorted(directory.glob("*.seen")):
            for test, seen in map(json.loads, file.read_text().splitlines()):
                for mark in seen if is_used(test) else ():
                    self._tests[mark].append(test)

    def _function(self, file: str, line: int) -> str:
        return self._sources.function_at(file, line)

    def _places(self, file: str, line: int, depth: int = _DEPTH) -> list[Place]:
        """Return where the nearest branches are: a line, or the calls of its function.

        The compiler puts a function without a branch into those that call it.
        """
        function = self._function(file, line)
        if (file, function) in self._marks:
            return [(file, line)]
        calls = self._calls[function] if depth else []
        return list(
            dict.fromkeys(chain.from_iterable(self._places(*call, depth - 1) for call in calls))
        )

    def programs(self, file: str, line: int) -> set[str]:
        """Return the programs that may have a line: those with a branch of its function.

        If its function has no branch, those with a branch of a function that calls it.
        """
        here = {
            program
            for place in self._places(file, line)
            for program in self._programs[place[0], self._function(*place)]
        }
        return here or self._of_file.get(file) or self._all

    def tests(self, file: str, line: int, wanted: int, chance: random.Random) -> list[str]:
        """Return tests that reach a line, at most so many: of each outcome one in turn.

        Outcomes of the line, then those of other lines of its function, the nearest ones first: the
        compiler may decide the condition of a line at another one. Few tests take a rare outcome,
        and they are those that see what comes after it.
        """
        places = self._places(file, line)
        of_places = [self._tests_at(*place, wanted, chance) for place in places]
        return list(_in_turn(of_places))[:wanted]

    def _tests_at(self, file: str, line: int, wanted: int, chance: random.Random) -> list[str]:
        marks = self._marks.get((file, self._function(file, line)), {})
        tests: dict[str, None] = {}
        for number in sorted(marks, key=lambda number: abs(number - line)):
            outcomes = [
                list(varied(self._tests[mark], chance))
                for mark in sorted(marks[number])
                if mark in self._tests
            ]
            outcomes.sort(key=len)
            tests |= _in_turn(outcomes)
            if len(tests) >= wanted:
                break
        return list(tests)[:wanted]

    def busiest(self, file: str, line: int, among: Iterable[str]) -> tuple[str, list[str]]:
        """Return the program in which most of these tests reach a line, and those tests."""
        reached: dict[str, set[str]] = defaultdict(set)
        for mark in self._nearest(file, line):
            reached[self._program_of[mark]].update(self._tests.get(mark, ()))
        tests = {name: [test for test in among if test in its] for name, its in reached.items()}
        return max(tests.items(), key=lambda pair: len(pair[1]), default=("", []))

    def _nearest(self, file: str, line: int) -> set[int]:
        """Return the marks of the line, or of the last line before it that has a mark.

        If no test has seen these marks: all marks of the function.
        """
        places = self._places(file, line)
        return set().union(*(self._nearest_at(*place) for place in places))

    def _nearest_at(self, file: str, line: int) -> set[int]:
        marks = self._marks.get((file, self._function(file, line)), {})
        lines = [number for number in marks if number <= line] or list(marks)
        if not lines:
            return set()
        nearest = marks[max(lines) if max(lines) <= line else min(lines)]
        if any(mark in self._tests for mark in nearest):
            return nearest
        return {mark for of_line in marks.values() for mark in of_line}


def _calls(root: Path) -> dict[str, list[Place]]:
    """Return the lines within functions that call a function, by its name."""
    calls: dict[str, list[Place]] = defaultdict(list)
    for path in sorted((*root.rglob("*.c"), *root.rglob("*.h"))):
        for number, line in enumerate(path.read_text().splitlines(), 1):
            for name in set(_CALL.findall(line)) if line.startswith("\t") else ():
                calls[name].append((str(path.relative_to(root)), number))
    return calls


def _in_turn(groups: Iterable[Iterable[str]]) -> dict[str, None]:
    """Return the first of each group, then the second of each, and so on; each once."""
    return dict.fromkeys(filter(None, chain.from_iterable(zip_longest(*groups))))


def varied(tests: Iterable[str], chance: random.Random) -> Iterator[str]:
    """Yield tests in rounds, each with one test of each function."""
    of_function: dict[str, list[str]] = defaultdict(list)
    for test in sorted(tests):
        of_function[test.partition("[")[0]].append(test)
    groups = list(of_function.values())
    chance.shuffle(groups)
    for group in groups:
        chance.shuffle(group)
    while groups:
        yield from (group.pop() for group in groups)
        groups = [group for group in groups if group]
