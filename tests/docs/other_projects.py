"""What other projects test, case by case, and what becomes of it here.

``python -m tests.docs.other_projects`` writes docs/netfilter-cases.md from the tables in
``tests/docs/cases``. A table has groups of cases with one situation:

* ``cases``: their names; with vectors of fixtures, a name has the vectors and numbers where it is.
* ``situation``: what happens, in a few words.
* ``holds``: tests, by node ids below ``tests/`` and without parameters; or ``does not apply``: why;
  or ``fault``: what is worse than the measure.
* ``besides``: what the tests do not say.
"""

from __future__ import annotations

import ast
import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import yaml

TESTS = Path(__file__).parents[1]
TABLES = TESTS / "docs" / "cases"
PAGE = TESTS.parent / "docs" / "netfilter-cases.md"

RESULTS = ("holds", "does not apply", "fault")
ORDER = ("netfilter", "katran", "calico")
"""Names of the tables, as the page has them."""

_FIELDS = {"cases", "situation", "besides", *RESULTS}


@dataclass(frozen=True, slots=True)
class Group:
    """Cases of one situation."""

    cases: dict[str, list[str]]
    """Name -> where it is; empty where a name says all."""
    situation: str
    result: str
    tests: tuple[str, ...]
    words: str

    @property
    def count(self) -> int:
        """How many cases these are."""
        return sum(max(1, len(at)) for at in self.cases.values())


@dataclass(frozen=True, slots=True)
class Table:
    """The cases of one project."""

    project: str
    source: str
    groups: tuple[Group, ...]


def read_tables() -> list[Table]:
    """Return the tables; raise :class:`ValueError` for a group that says nothing, or too much."""
    return [_table(yaml.safe_load((TABLES / f"{name}.yaml").read_text())) for name in ORDER]


def _table(raw: dict[str, Any]) -> Table:
    return Table(raw["project"], raw["source"], tuple(map(_group, raw["groups"])))


def _group(raw: dict[str, Any]) -> Group:
    results = [name for name in RESULTS if name in raw]
    if len(results) != 1 or set(raw) - _FIELDS:
        raise ValueError(f"a group needs one of {RESULTS}, and only {_FIELDS}: {raw}")
    (result,) = results
    names = raw["cases"]
    cases = (
        {name: at.split(", ") for name, at in names.items()}
        if isinstance(names, dict)
        else {name: [] for name in names}
    )
    tests = tuple(f"tests/{test}" for test in raw[result]) if result == "holds" else ()
    words = raw.get("besides", "") if tests else raw[result]
    return Group(cases, raw["situation"], result, tests, words)


@cache
def test_names(file: str) -> frozenset[str]:
    """Return the names of the tests of a file; those of classes with the class before them."""
    tree = ast.parse((TESTS.parent / file).read_text())
    return frozenset(_names(tree.body))


def _names(body: list[ast.stmt], prefix: str = "") -> Iterator[str]:
    for node in body:
        if isinstance(node, ast.ClassDef):
            yield from _names(node.body, f"{node.name}::")
        elif isinstance(node, ast.FunctionDef) and node.name.startswith("test_"):
            yield prefix + node.name


def missing(test: str) -> bool:
    """True if there is no test of a node id."""
    file, _, name = test.partition("::")
    return not (TESTS.parent / file).is_file() or name not in test_names(file)


def page(tables: list[Table]) -> str:
    """Return the whole page."""
    parts = [_HEAD, "| suite | cases | hold | do not apply | faults |", "|---|---|---|---|---|"]
    for table in tables:
        counts = Counter[str]()
        for group in table.groups:
            counts[group.result] += group.count
        numbers = " | ".join(str(counts[name]) for name in RESULTS)
        parts.append(f"| {table.project} | {counts.total()} | {numbers} |")
    for table in tables:
        parts += [
            f"\n## {table.project}\n",
            f"From {table.source}.\n",
            "| case | situation | result |",
            "|---|---|---|",
            *map(_row, table.groups),
        ]
    return "\n".join(parts) + "\n"


def _row(group: Group) -> str:
    names = [
        f"`{name}`" + (f" ({', '.join(at)})" if at else "") for name, at in group.cases.items()
    ]
    shown = [f"`{test.removeprefix('tests/')}`" for test in group.tests]
    words = {"holds": "", "does not apply": "**does not apply**: ", "fault": "**fault**: "}
    result = words[group.result] + group.words
    if shown:
        result = "**holds**: " + "<br>".join(shown)
        result += f"<br>{_sentence(group.words)}" if group.words else ""
    cells = ("<br>".join(names), group.situation, result)
    return "| " + " | ".join(re.sub(r"\s+", " ", cell).replace("|", "\\|") for cell in cells) + " |"


def _sentence(words: str) -> str:
    return words[:1].upper() + words[1:] + "."


_HEAD = """# What netfilter, katran and Calico test

<!-- Written by "python -m tests.docs.other_projects" from the tables in tests/docs/cases. -->

Other projects have met situations that are hard to think of. This page lists the cases of three
suites of tests, and says what becomes of each case in bpfsvc:

* a case *holds*: the named tests of bpfsvc show that (paths are below `tests/`);
* a case *does not apply*;
* a case is a *fault*: netfilter's connection tracking, which kube-proxy uses, does better.

Only the situations come from the other projects. The tests are bpfsvc's own. The suites themselves
have not been run on bpfsvc.

A file name of Calico stands for all tests of that file, and counts as one case.
"""


if __name__ == "__main__":
    PAGE.write_text(page(read_tables()))
