"""What pytest has written of a run (``--junitxml``)."""

from __future__ import annotations

import xml.etree.ElementTree as ET
from typing import NamedTuple


class Result(NamedTuple):
    """A test of a run; ``failure``: its first line, empty if the test passed."""

    test: str
    failure: str


def read_results(text: str) -> list[Result]:
    """Return the results; a test with failures in its setup and its teardown is a single result.

    A test that was skipped is none.
    """
    results: dict[str, str] = {}
    for case in ET.fromstring(text).iter("testcase"):
        if case.find("skipped") is not None:
            continue
        test = f"{case.get('classname', '').replace('.', '/')}.py::{case.get('name')}"
        problems = [*case.iter("failure"), *case.iter("error")]
        lines = [(problem.get("message") or "failed").splitlines()[0] for problem in problems]
        results[test] = results.get(test) or "; ".join(lines)
    return [Result(*item) for item in results.items()]
