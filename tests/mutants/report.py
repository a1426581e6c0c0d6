"""What became of the changes, in figures and as a list of those that no test has seen."""

from __future__ import annotations

import argparse
from collections import Counter
from typing import Any

from tests.branches.report import share
from tests.docs.figures import measured
from tests.mutants import python_changes
from tests.mutants.c_changes import Change

Tried = list[tuple[Change, dict[str, Any]]]
TriedPython = list[tuple[python_changes.Change, dict[str, Any]]]


def figures(
    tried: Tried, unreached: list[Change], every: int, minutes: float, arguments: argparse.Namespace
) -> str:
    """Return the figures of a run, as lines of Markdown."""
    states = Counter(answer["state"] for _, answer in tried)
    rows = [
        ("changes that there are", f"{every:,}"),
        *_common_rows(states, minutes, arguments),
        ("refused by the verifier", f"{states['refused']:,}"),
        ("not compiled", f"{states['does not compile']:,}"),
        ("the same code", f"{states['same code']:,}"),
        ("of lines that no packet test reaches", f"{len(unreached):,}, not tried"),
    ]
    return measured(f"make mutants COUNT={arguments.count} SEED={arguments.seed}", rows)


def _common_rows(
    states: Counter[str], minutes: float, arguments: argparse.Namespace
) -> list[tuple[str, str]]:
    spent = "several runs" if arguments.again else f"{minutes:.0f} minutes"
    killed, explained = states["killed"], states["explained"]
    judged = killed + states["survived"]
    with_reasons = [
        ("seen by no test, with the reason why no test can", f"{explained:,}"),
        ("seen by a test, of all changes", share(killed, judged + explained)),
    ]
    return [
        ("tried", f"{states.total():,} in {spent}"),
        ("seen by a test", f"{killed:,}: {share(killed, judged)}"),
        ("seen by no test", f"{states['survived']:,}"),
        *(with_reasons if explained else []),
        ("not ended in time: neither", f"{states['no end']:,}"),
    ]


def survivors(tried: Tried) -> str:
    """Return the changes that no test has seen, and that have no reason, as a diff."""
    return "\n".join(
        f"{change.file}:{change.line}: {change.kind}\n-{change.before}\n+{change.after}"
        for change, answer in sorted(tried, key=lambda pair: pair[0])
        if answer["state"] == "survived"
    )


def python_figures(
    tried: TriedPython, every: int, minutes: float, arguments: argparse.Namespace
) -> str:
    """Return the figures of a run over Python, as lines of Markdown."""
    states = Counter(answer["state"] for _, answer in tried)
    rows = [
        ("changes that there are in `bpfsvc/services`", f"{every:,}"),
        *_common_rows(states, minutes, arguments),
        ("in functions that have no code of their own", f"{states['no function']:,}, not tried"),
    ]
    return measured(
        f"make mutants ARGS=--python COUNT={arguments.count} SEED={arguments.seed}", rows
    )


def python_survivors(tried: TriedPython) -> str:
    """Return the changes that no test has seen."""
    return "\n".join(
        f"{change.module}:{change.line}: {change.function}: {change.kind}: {change.text}"
        for change, answer in sorted(tried, key=lambda pair: pair[0])
        if answer["state"] == "survived"
    )
