"""Spans of time in Go's notation (``1h2m3s``, ``500ms``), which Kubernetes uses everywhere.

Kept in nanoseconds, as Go does: what was read is written again as the same text.
"""

from __future__ import annotations

import re
from decimal import Decimal
from functools import total_ordering

_UNITS = {
    "h": 3_600_000_000_000,
    "m": 60_000_000_000,
    "s": 1_000_000_000,
    "ms": 1_000_000,
    "us": 1_000,
    "µs": 1_000,
    "μs": 1_000,
    "ns": 1,
}
_PART = r"(\d+\.?\d*|\.\d+)(ns|us|µs|μs|ms|s|m|h)"
_PARTS = re.compile(_PART, re.ASCII)
_WHOLE = re.compile(rf"[-+]?(?:0|(?:{_PART})+)", re.ASCII)
_LONGEST = (1 << 63) - 1


@total_ordering
class Duration:
    """A span of time; falsy when it is none."""

    __slots__ = ("nanoseconds",)

    def __init__(self, nanoseconds: int = 0) -> None:
        self.nanoseconds = nanoseconds

    @classmethod
    def of(cls, seconds: float) -> Duration:
        """Make one of seconds."""
        return cls(round(seconds * _UNITS["s"]))

    @property
    def seconds(self) -> float:
        """Give seconds."""
        return self.nanoseconds / _UNITS["s"]

    def __bool__(self) -> bool:
        return self.nanoseconds != 0

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Duration) and self.nanoseconds == other.nanoseconds

    def __lt__(self, other: Duration) -> bool:
        return self.nanoseconds < other.nanoseconds

    def __hash__(self) -> int:
        return hash(self.nanoseconds)

    def __repr__(self) -> str:
        return f"Duration({str(self)!r})"

    def __str__(self) -> str:
        """Write it as Go does: hours, minutes and seconds, or one smaller unit with a fraction."""
        size = abs(self.nanoseconds)
        sign = "-" if self.nanoseconds < 0 else ""
        if size == 0:
            return "0s"
        if size < _UNITS["s"]:
            unit = next(unit for unit in ("ms", "µs", "ns") if size >= _UNITS[unit])
            return f"{sign}{_fraction(size, _UNITS[unit])}{unit}"
        minutes, rest = divmod(size, _UNITS["m"])
        hours, minutes = divmod(minutes, 60)
        text = f"{hours}h" if hours else ""
        text += f"{minutes}m" if hours or minutes else ""
        return f"{sign}{text}{_fraction(rest, _UNITS['s'])}s"


def parse(text: str) -> Duration:
    """Read a span of time; ``ValueError`` for what is none."""
    size = Decimal(0)
    if _WHOLE.fullmatch(text):
        for number, unit in _PARTS.findall(text):
            size += Decimal(number) * _UNITS[unit]
        if size <= _LONGEST:
            return Duration(-int(size) if text.startswith("-") else int(size))
    raise ValueError(f"expected a duration such as 30s or 1h30m, got {text!r}")


def _fraction(size: int, unit: int) -> str:
    whole, rest = divmod(size, unit)
    digits = len(str(unit)) - 1
    return f"{whole}.{rest:0{digits}}".rstrip("0").rstrip(".")
