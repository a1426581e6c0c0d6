"""The results of a run on a cluster: JUnit for programs, one table for people."""

from __future__ import annotations

import time
import xml.etree.ElementTree as ElementTree
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path

from rich.console import Console
from rich.table import Table

PASSED, FAILED, SKIPPED = "passed", "failed", "skipped"

_MARKS = {PASSED: "ok", FAILED: "FAILED", SKIPPED: "skipped"}
_WIDTH = 160


@dataclass(frozen=True)
class Result:
    """Of one case of a suite.

    ``figures``: what it counted or measured, by name, in the order of the table.
    ``reason``: why it failed or was skipped. ``listed``: False if only JUnit has it.
    """

    suite: str
    case: str
    status: str = PASSED
    seconds: float = 0.0
    reason: str = ""
    figures: Mapping[str, object] = field(default_factory=dict)
    listed: bool = True


class Report:
    """Collects results; after each, both files are written anew in ``folder``."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.results: list[Result] = []
        self._began = time.monotonic()
        folder.mkdir(parents=True, exist_ok=True)

    @property
    def failed(self) -> bool:
        """True if a case failed."""
        return any(result.status == FAILED for result in self.results)

    def add(self, *results: Result) -> None:
        """Add results and write the files, so that a run that breaks off leaves what it has."""
        self.results += results
        with (self.folder / "results.txt").open("w") as file:
            self.show(Console(file=file, width=_WIDTH))
        ElementTree.ElementTree(junit(self.results)).write(
            self.folder / "junit.xml", encoding="unicode", xml_declaration=True
        )

    @contextmanager
    def case(self, suite: str, case: str) -> Iterator[dict[str, object]]:
        """Add the result of the block: failed with the text of what it raises, else passed.

        Yields the figures, for the block to fill. Errors go no further, so that the next case runs.
        """
        figures: dict[str, object] = {}
        began = time.monotonic()
        result = Result(suite, case, figures=figures)
        try:
            yield figures
        except Exception as error:
            result = replace(result, status=FAILED, reason=str(error) or repr(error))
        self.add(replace(result, seconds=time.monotonic() - began))

    def show(self, console: Console) -> None:
        """Print the table, below it why cases failed, and a line like pytest's last one."""
        table = Table("suite", "case", "result", "s", "figures")
        for each in self.results:
            if each.listed:
                table.add_row(
                    each.suite,
                    each.case,
                    _MARKS[each.status],
                    f"{each.seconds:.0f}",
                    ", ".join(f"{name} {value}" for name, value in each.figures.items()),
                )
        console.print(table)
        for each in self.results:
            if each.status == FAILED:
                console.print(f"FAILED {each.suite}: {each.case}\n  {each.reason}", markup=False)
        counts = Counter(result.status for result in self.results)
        summary = ", ".join(f"{count} {status}" for status, count in sorted(counts.items()))
        seconds = time.monotonic() - self._began
        console.rule(f"{summary or 'nothing was run'} in {seconds:.2f}s", characters="=")


def junit(results: Iterable[Result]) -> ElementTree.Element:
    """Return results as JUnit: a test suite for each suite, in the order of their first cases."""
    root = ElementTree.Element("testsuites")
    suites: dict[str, ElementTree.Element] = {}
    for result in results:
        if result.suite not in suites:
            suites[result.suite] = ElementTree.SubElement(root, "testsuite", name=result.suite)
        case = ElementTree.SubElement(
            suites[result.suite], "testcase", name=result.case, time=f"{result.seconds:.1f}"
        )
        if result.status == FAILED:
            ElementTree.SubElement(case, "failure", message=result.reason)
        elif result.status == SKIPPED:
            ElementTree.SubElement(case, "skipped", message=result.reason)
        if result.figures:
            properties = ElementTree.SubElement(case, "properties")
            for name, value in result.figures.items():
                ElementTree.SubElement(properties, "property", name=name, value=str(value))
    for element in suites.values():
        for kind in ("failure", "skipped"):
            count = sum(1 for _ in element.iter(kind))
            element.set({"failure": "failures"}.get(kind, kind), str(count))
        element.set("tests", str(len(element)))
    return root
