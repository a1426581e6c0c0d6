"""The table of docs/kernels.md: what was seen on each kernel, one row a kernel."""

from __future__ import annotations

import re
from datetime import date
from pathlib import Path
from typing import NamedTuple

from tests.kernels.suites import SUITES

LIMIT = 1_000_000
"""Instructions that the verifier follows for one program, at most."""

BEGIN, END = "<!-- results: begin -->", "<!-- results: end -->"
_HEAD = (
    "| kernel | release | programs | verified | largest program | missing features |"
    " suites passed |\n|---|---|---|---|---|---|---|"
)


class Result(NamedTuple):
    """``followed``: instructions that the verifier has followed, by program.

    ``suites``: those that ran, and whether they passed.
    """

    kernel: str
    release: str
    followed: dict[str, int]
    without: list[str]
    suites: dict[str, bool]


def row(result: Result, passed: dict[str, date]) -> str:
    """Return the row of one kernel. ``passed``: suites, and when they passed last."""
    name, most = max(result.followed.items(), key=lambda entry: entry[1])
    return (
        f"| {result.kernel} | {result.release} | {len(result.followed)} |"
        f" {sum(result.followed.values()):,} | `{name}` {most:,} ({100 * most / LIMIT:.0f} %) |"
        f" {len(result.without) or 'none'} | {_written(passed) or 'none'} |"
    )


def write(file: Path, result: Result, today: date) -> None:
    """Put what was seen on a kernel into the table of a page.

    A suite that did not run keeps its date. One that failed is listed no more.
    """
    text = file.read_text()
    before, table, after = re.split(f"{BEGIN}|{END}", text)
    rows = {line.split("|")[1].strip(): line for line in table.splitlines()[3:] if line}
    passed = _read(rows.get(result.kernel, ""))
    for suite, has_passed in result.suites.items():
        passed.pop(suite, None)
        if has_passed:
            passed[suite] = today
    rows[result.kernel] = row(result, passed)
    body = "\n".join(rows[kernel] for kernel in sorted(rows, key=_order))
    file.write_text(f"{before}{BEGIN}\n{_HEAD}\n{body}\n{END}{after}")


def _written(passed: dict[str, date]) -> str:
    """Return suites by the day when they passed, the last day first."""
    return "; ".join(
        f"{day}: {', '.join(suite for suite in SUITES if passed.get(suite) == day)}"
        for day in sorted(set(passed.values()), reverse=True)
    )


def _read(line: str) -> dict[str, date]:
    """Return the suites of a row that was written before, and when they passed."""
    return {
        suite: date.fromisoformat(day)
        for day, suites in re.findall(r"(\d{4}-\d\d-\d\d): ([a-z]+(?:, [a-z]+)*)", line)
        for suite in suites.split(", ")
    }


def _order(kernel: str) -> tuple[int, ...]:
    """Sort by version; names without a version come last."""
    return tuple(int(part) for part in re.findall(r"\d+", kernel)) or (1 << 16,)
