"""Results of a run on a cluster become JUnit and a table."""

from __future__ import annotations

import re
import xml.etree.ElementTree as ElementTree
from pathlib import Path

from tests.cluster.report import FAILED, SKIPPED, Report, Result


def test_both_files_are_whole_after_each_result(tmp_path: Path) -> None:
    report = Report(tmp_path)
    report.add(Result("load", "backends are rolled", figures={"opened": 9000, "failed": 0}))
    report.add(Result("load", "a node is drained", FAILED, 12.3, "3 [of 60] were cut"))
    report.add(Result("e2e", "Services should wait", SKIPPED, reason="no zones", listed=False))
    assert report.failed
    root = ElementTree.parse(tmp_path / "junit.xml").getroot()
    assert [dict(suite.items()) for suite in root] == [
        {"name": "load", "failures": "1", "skipped": "0", "tests": "2"},
        {"name": "e2e", "failures": "0", "skipped": "1", "tests": "1"},
    ]
    (failure,) = root.iter("failure")
    assert failure.get("message") == "3 [of 60] were cut"
    text = (tmp_path / "results.txt").read_text()
    assert "opened 9000, failed 0" in text
    assert "FAILED load: a node is drained\n  3 [of 60] were cut" in text
    assert "should wait" not in text
    assert re.search(r"^=+ 1 failed, 1 passed, 1 skipped in [0-9.]+s =+$", text, re.MULTILINE)


def test_a_case_that_raises_has_failed_and_the_next_one_runs(tmp_path: Path) -> None:
    report = Report(tmp_path)
    with report.case("load", "first") as figures:
        figures["cut"] = 1
        raise RuntimeError("one was cut")
    with report.case("load", "second"):
        pass
    first, second = report.results
    assert (first.status, first.reason, first.figures) == (FAILED, "one was cut", {"cut": 1})
    assert second.status == "passed"
