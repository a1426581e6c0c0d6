"""What Kubernetes' e2e tests report: JUnit, as ginkgo writes it."""

from __future__ import annotations

import re
import xml.etree.ElementTree as ElementTree
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from tests.cluster.report import FAILED, PASSED, SKIPPED

_FAILURES = frozenset(("failed", "timedout", "panicked", "interrupted", "aborted"))
_NOT_SELECTED = ("", "skipped")
"""ginkgo's reasons for specs that the focus leaves out; a spec that skips itself says why."""
_PREFIX = re.compile(r"^\[It\] (\[sig-network\] )?")


@dataclass(frozen=True)
class Outcome:
    """Of one spec. ``seconds``: how long it ran; ``reason``: why it failed or was skipped."""

    spec: str
    status: str
    seconds: float
    reason: str = ""


def read(files: Iterable[Path]) -> dict[str, Outcome]:
    """Return the outcomes of all specs that were selected, by their names.

    The parts around the specs (set-up of the suite, reports) count only if they fail. Of a spec
    that is in several files, the last counts.
    """
    outcomes: dict[str, Outcome] = {}
    for file in files:
        for case in ElementTree.parse(file).getroot().iter("testcase"):
            for outcome in _outcome(case):
                outcomes[outcome.spec] = outcome
    return outcomes


def _outcome(case: ElementTree.Element) -> Iterator[Outcome]:
    """Yield the outcome of a test case, if it counts."""
    name, status = case.get("name", ""), case.get("status", "")
    seconds = float(case.get("time", "0"))
    spec = _PREFIX.sub("", name)
    if status in _FAILURES:
        failure = case.find("failure")
        if failure is None:
            failure = case.find("error")
        reason = "" if failure is None else failure.get("message") or failure.text or ""
        yield Outcome(spec, FAILED, seconds, reason.strip() or status)
    elif not name.startswith("[It]"):
        return
    elif (skipped := case.find("skipped")) is not None:
        # ginkgo writes "skipped", or "skipped - the reason".
        reason = (skipped.get("message") or "").removeprefix("skipped - ")
        if reason not in _NOT_SELECTED:
            yield Outcome(spec, SKIPPED, seconds, reason)
    elif status == PASSED:
        yield Outcome(spec, PASSED, seconds)
