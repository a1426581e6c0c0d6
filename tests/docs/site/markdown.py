"""Text of Python as Markdown."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Iterable

WIDTH = 120

_FLAG = re.compile(r"(?<![\w`-])(--?[a-zA-Z][\w-]*(?:=[A-Za-z0-9]+)?)")


def title(text: str) -> str:
    """Return the title of a page: its first line."""
    return text.partition("\n")[0].removeprefix("# ")


def prose(text: str) -> str:
    """Return one paragraph of help as Markdown: flags are code, and nothing else means markup."""
    escaped = re.sub(r"([<*\[\]|])", r"\\\1", " ".join(text.split()))
    return _FLAG.sub(r"`\1`", escaped)


def wrapped(text: str, indent: str = "", first: str | None = None) -> str:
    """Return a text in lines that are as wide as documents are."""
    return textwrap.fill(
        text,
        WIDTH,
        initial_indent=indent if first is None else first,
        subsequent_indent=indent,
        break_long_words=False,
        break_on_hyphens=False,
    )


def code(text: str) -> str:
    """Return a text as code; an empty text stays empty."""
    return f"`{text}`" if text else ""


def table(columns: Iterable[str], rows: Iterable[Iterable[str]]) -> str:
    """Return a table. A ``|`` in a cell does not end the cell."""
    names = [*columns]
    lines = [
        names,
        ["---"] * len(names),
        *([cell.replace("|", "\\|") for cell in row] for row in rows),
    ]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)
