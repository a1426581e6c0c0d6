"""What every view of a map returns: named columns, and rows of plain values in a fixed order.

The kernel's own order is that of its hash, different after every restart. A sorted dump can be
compared with an earlier one.
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

    The values of ``seconds`` columns are durations. The first ``keys`` columns say which row it is,
    the others what is in it; 0: all of them do.
    """

    name: str
    columns: tuple[str, ...]
    rows: Sequence[Row]
    seconds: frozenset[str] = frozenset()
    keys: int = 0
