"""The report: a table for people, JSON for the one who compares two runs.

JSON says on what it was measured and holds no date: two runs of one build differ in figures only.
"""

from __future__ import annotations

import json
import os
import platform
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path

from bpfsvc.bench.figures import Row, Scale, Value


def machine() -> Row:
    """Say what kind of machine this is."""
    model = "unknown"
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            model = line.partition(":")[2].strip()
            break
    return {
        "kernel": platform.release(),
        "architecture": platform.machine(),
        "processor": model,
        "cores": len(os.sched_getaffinity(0)),
        "python": platform.python_version(),
    }


def as_json(results: Mapping[str, Sequence[Row]], scale: Scale) -> str:
    """Give everything as one JSON document."""
    return json.dumps({"machine": machine(), "scale": asdict(scale), "suites": results}, indent=2)


def as_table(name: str, rows: Sequence[Row]) -> str:
    """Give a suite's rows as aligned columns; rows of other columns start another table."""
    parts = [f"{name}:"]
    start = 0
    for end in range(1, len(rows) + 1):
        if end == len(rows) or list(rows[end]) != list(rows[start]):
            parts.append(_block(rows[start:end]))
            start = end
    return "\n".join(parts)


def _block(rows: Sequence[Row]) -> str:
    heads = list(rows[0])
    lines = [heads, *([_text(row[head]) for head in heads] for row in rows)]
    widths = [max(len(line[at]) for line in lines) for at in range(len(heads))]
    numeric = [not isinstance(rows[0][head], str) for head in heads]
    return (
        "\n".join(
            "  "
            + "  ".join(
                cell.rjust(width) if right else cell.ljust(width)
                for cell, width, right in zip(line, widths, numeric, strict=True)
            ).rstrip()
            for line in lines
        )
        + "\n"
    )


def _text(value: Value) -> str:
    if isinstance(value, float):
        if abs(value) >= 100:
            return f"{value:.0f}"
        return f"{value:.1f}" if abs(value) >= 10 else f"{value:.3f}"
    return str(value)
