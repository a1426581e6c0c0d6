"""Output on standard output: tables are folded for a terminal that is too narrow."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Iterable

from bpfsvc.inspect.tables import folded

FOR_PEOPLE = ("table", "wide")
"""Formats that may be folded."""


def print_pieces(pieces: Iterable[str], output: str = "table") -> None:
    """Print what was written for a format. In a pipe, a row of a table stays a line."""
    if output in FOR_PEOPLE and sys.stdout.isatty():
        pieces = folded(pieces, shutil.get_terminal_size().columns)
    sys.stdout.writelines(pieces)
    sys.stdout.flush()
