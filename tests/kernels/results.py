"""The table of docs/kernels.md: what was seen on each kernel, one row a kernel."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

LIMIT = 1_000_000
"""Instructions that the verifier follows for one program, at most."""

BEGIN, END = "<!-- results: begin -->", "<!-- results: end -->"
_HEAD = (
    "| kernel | release | programs | verified | largest program | suites passed |"
    " missing features |\n|---|---|---|---|---|---|---|"
)


class Result(NamedTuple):
    """``followed``: instructions that the verifier has followed, by program."""

    kernel: str
    release: str
    followed: dict[str, int]
    without: list[str]
    passed: tuple[str, ...]


def row(result: Result, suites: Sequence[str]) -> str:
    """Return the row of one kernel. ``suites``: all that there are."""
    name, most = max(result.followed.items(), key=lambda entry: entry[1])
    passed = "all" if len(result.passed) == len(suites) else ", ".join(result.passed) or "none"
    return (
        f"| {result.kernel} | {result.release} | {len(result.followed)} |"
        f" {sum(result.followed.values()):,} | `{name}` {most:,} ({100 * most / LIMIT:.0f} %) |"
        f" {passed} | {len(result.without) or 'none'} |"
    )


def write(file: Path, result: Result, suites: Sequence[str]) -> None:
    """Put the row of a kernel into the table of a page, in place of its former one."""
    text = file.read_text()
    before, table, after = re.split(f"{BEGIN}|{END}", text)
    rows = {line.split("|")[1].strip(): line for line in table.splitlines()[3:] if line}
    rows[result.kernel] = row(result, suites)
    body = "\n".join(rows[kernel] for kernel in sorted(rows, key=_order))
    file.write_text(f"{before}{BEGIN}\n{_HEAD}\n{body}\n{END}{after}")


def _order(kernel: str) -> tuple[int, ...]:
    """Sort by version; names without a version come last."""
    return tuple(int(part) for part in re.findall(r"\d+", kernel)) or (1 << 16,)
