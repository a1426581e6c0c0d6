"""Figures that a command writes into a document, between marks of its own."""

from __future__ import annotations

import subprocess
from collections.abc import Iterable
from pathlib import Path


def commit() -> str:
    """Return the commit that is checked out, for people."""
    asked = ["git", "rev-parse", "--short", "HEAD"]
    answer = subprocess.run(asked, capture_output=True, text=True, check=False)
    return answer.stdout.strip() or "an unknown commit"


def measured(command: str, rows: Iterable[tuple[str, str]]) -> str:
    """Return the figures of a command at this commit, as lines of Markdown."""
    table = "\n".join(f"| {name} | {value} |" for name, value in rows)
    return f"`{command}` at {commit()}:\n\n| what | how often |\n|---|---|\n{table}\n"


def read_section(path: Path, command: str) -> str:
    """Return the text between the marks of a command in a document."""
    return _parts(path, command)[1].strip("\n")


def write_section(path: Path, command: str, text: str) -> None:
    """Put a text between the marks of a command in a document, in the place of an earlier one."""
    before, _, after = _parts(path, command)
    path.write_text(f"{before}\n{text}\n{after}")


def _parts(path: Path, command: str) -> tuple[str, str, str]:
    """Return a document up to the first mark, between the marks, and from the last mark on."""
    first, last = f"<!-- {command}: begin -->", f"<!-- {command}: end -->"
    before, begin, rest = path.read_text().partition(first)
    text, end, after = rest.partition(last)
    if not begin or not end:
        raise ValueError(f"{path} has no lines {first} and {last}")
    return before + first, text, last + after
