"""Which programs a line of C is in, and which tests reach it, as ``make coverage`` noted."""

from __future__ import annotations

import json
import random
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import chain, zip_longest
from pathlib import Path

from tests.branches.outcomes import Sources
from tests.branches.recorder import PLACES

_ENOUGH = 1000
"""So many tests of an outcome are looked at."""


class Reach:
    """What a run of ``make coverage`` knows of each line."""

    def __init__(
        self, directory: Path, sources: Sources, is_used: Callable[[str], bool] = lambda _: True
    ) -> None:
        """``is_used``: which tests may be named."""
        places = json.loads((directory / PLACES).read_text())
        self._sources = sources
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

    def programs(self, file: str, line: int) -> set[str]:
        """Return the programs that may have a line: those with a branch of its function."""
        here = self._programs.get((file, self._function(file, line)))
        return here or self._of_file.get(file) or self._all

    def tests(self, file: str, line: int, wanted: int, chance: random.Random) -> list[str]:
        """Return tests that reach a line, at most so many: of each outcome one in turn.

        Outcomes of the line, then those of other lines of its function, the nearest ones first: the
        compiler may decide the condition of a line at another one. Few tests take a rare outcome,
        and they are those that see what comes after it.
        """
        marks = self._marks.get((file, self._function(file, line)), {})
        tests: dict[str, None] = {}
        for number in sorted(marks, key=lambda number: abs(number - line)):
            outcomes = [
                list(varied(_some(self._tests[mark], chance), chance))
                for mark in sorted(marks[number])
                if mark in self._tests
            ]
            outcomes.sort(key=len)
            tests |= dict.fromkeys(filter(None, chain.from_iterable(zip_longest(*outcomes))))
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
        marks = self._marks.get((file, self._function(file, line)), {})
        lines = [number for number in marks if number <= line] or list(marks)
        if not lines:
            return set()
        nearest = marks[max(lines) if max(lines) <= line else min(lines)]
        if any(mark in self._tests for mark in nearest):
            return nearest
        return {mark for of_line in marks.values() for mark in of_line}


def _some(tests: Sequence[str], chance: random.Random) -> Sequence[str]:
    return chance.sample(tests, _ENOUGH) if len(tests) > _ENOUGH else tests


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
