"""The result of every view: named columns, and rows of plain values in a fixed order.

The kernel's order follows a hash that differs after every restart. A sorted dump can be compared
with an earlier dump.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

Value = str | int | float | bool | tuple[str, ...]
"""A cell. A tuple is a list of texts; an empty text or tuple means that there is no value."""

Row = tuple[Value, ...]


@dataclass(frozen=True, slots=True)
class Records:
    """The rows of one view, each as long as ``columns``.

    The values of ``seconds`` columns are durations. The first ``keys`` columns identify a row; 0:
    all columns do.
    """

    name: str
    columns: tuple[str, ...]
    rows: Sequence[Row]
    seconds: frozenset[str] = frozenset()
    keys: int = 0
