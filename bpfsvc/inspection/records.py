"""What every view of a map gives: named columns, and rows of plain values in a settled order.

The kernel's own order is that of its hash, different after every restart; a sorted dump can be
compared with yesterday's.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

Value = str | int | float | bool | tuple[str, ...]
"""A cell. A tuple is a list of texts; an empty text or tuple means that there is nothing."""

Row = tuple[Value, ...]


@dataclass(frozen=True, slots=True)
class Records:
    """The rows of one view, each as long as ``columns``.

    The values of ``seconds`` columns are durations.
    """

    name: str
    columns: tuple[str, ...]
    rows: Sequence[Row]
    seconds: frozenset[str] = frozenset()
