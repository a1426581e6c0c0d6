"""What is expected of each e2e spec: how it ends with kube-proxy, and with bpfsvc.

The tables lie beside this file, with a tab between columns. A line of the first has the outcome
with kube-proxy, that with bpfsvc, the spec's name, and for what does not pass a reason. A line of
the second has a suite, a spec that its setting cannot pass, and the reason, which the documents of
the setting give, too.
"""

from __future__ import annotations

import csv
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final, Literal

from tests.cluster.e2e.junit import Outcome
from tests.cluster.report import FAILED, PASSED

TABLE = Path(__file__).with_name("expected.tsv")
LIMITS = Path(__file__).with_name("limits.tsv")
UNKNOWN: Final = "unknown"

Proxy = Literal["kube_proxy", "bpfsvc"]


@dataclass(frozen=True)
class Expectation:
    """Of one spec: the outcomes with both, and why one of them is not "passed"."""

    spec: str
    kube_proxy: str
    bpfsvc: str
    reason: str = ""


@dataclass(frozen=True)
class Fault:
    """A spec whose outcome is worse than it has to be, and what is wrong with it."""

    spec: str
    problem: str


def load(file: Path = TABLE) -> dict[str, Expectation]:
    """Return the table, by the specs' names."""
    with file.open(newline="") as lines:
        rows = csv.reader(lines, delimiter="\t")
        return {row[2]: Expectation(row[2], row[0], row[1], *row[3:]) for row in rows}


def load_limits(suite: str, file: Path = LIMITS) -> dict[str, str]:
    """Return why specs cannot pass in a suite, by their names."""
    with file.open(newline="") as lines:
        rows = csv.reader(lines, delimiter="\t")
        return {row[1]: row[2] for row in rows if row[0] == suite}


def save(expectations: Iterable[Expectation], file: Path = TABLE) -> None:
    """Write the table, ordered by the specs' names."""
    with file.open("w", newline="") as lines:
        writer = csv.writer(lines, delimiter="\t", lineterminator="\n")
        for one in sorted(expectations, key=lambda one: one.spec):
            reason = [one.reason] if one.reason else []
            writer.writerow([one.kube_proxy, one.bpfsvc, one.spec, *reason])


def measured(
    table: Mapping[str, Expectation],
    outcomes: Mapping[str, Outcome],
    proxy: Proxy,
) -> dict[str, Expectation]:
    """Return the table with the outcomes of a run with one of the proxies.

    A spec that is new is "unknown" with the other one. A reason in the table stays, as long as
    the spec does not pass with both.
    """
    merged = dict(table)
    for outcome in outcomes.values():
        known = merged.get(outcome.spec, Expectation(outcome.spec, UNKNOWN, UNKNOWN))
        reason = known.reason or " ".join(outcome.reason.split())
        new = replace(known, **{proxy: outcome.status}, reason=reason)
        if new.kube_proxy == new.bpfsvc == PASSED:
            new = replace(new, reason="")
        merged[outcome.spec] = new
    return merged


def faults(
    outcomes: Mapping[str, Outcome],
    expected: Mapping[str, Expectation],
    limits: Collection[str] = (),
) -> list[Fault]:
    """Return what is wrong with the outcomes of a run with bpfsvc.

    Wrong is what kube-proxy or bpfsvc once passed and does not now, and a failure that nothing is
    expected of. Of a spec that is beyond the limits of the setting, it is wrong that it passes. A
    spec that was not run is no fault here: the run may be a part.
    """
    seen = []
    for spec, outcome in outcomes.items():
        problem = _beyond(outcome) if spec in limits else _problem(outcome, expected.get(spec))
        if problem:
            seen.append(Fault(spec, problem))
    return sorted(seen, key=lambda fault: fault.spec)


def _beyond(outcome: Outcome) -> str:
    """Return what is wrong with the outcome of a spec that cannot pass, or nothing."""
    return f"passed: take it out of {LIMITS.name}" if outcome.status == PASSED else ""


def _problem(outcome: Outcome, known: Expectation | None) -> str:
    """Return what is wrong with an outcome, or nothing."""
    if outcome.status == PASSED:
        return ""
    if known is None:
        return f"failed: {outcome.reason}" if outcome.status == FAILED else ""
    if PASSED not in (known.kube_proxy, known.bpfsvc):
        return ""
    who = "kube-proxy" if known.kube_proxy == PASSED else "bpfsvc before"
    return f"{outcome.status}, and {who} passed: {outcome.reason}"
