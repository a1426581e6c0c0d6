"""Durations in Go's notation (``1h2m3s``, ``500ms``), which Kubernetes uses everywhere.

They are kept in nanoseconds and written as Go writes them, so that ``/configz`` shows what
kube-proxy shows. The library durationpy 0.11 fails these cases, so it is not used:

* It writes ``24h`` for ``24h0m0s``, ``1h30m`` for ``1h30m0s``, and ``0`` for ``0s``.
* It keeps microseconds: ``7ns`` becomes ``0``.
* It accepts what Go refuses: ``1d``, ``1w``, ``1mm`` (a month), ``٣s``, and more than 292 years.
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
    """A length of time; false if it is zero."""

    __slots__ = ("nanoseconds",)

    def __init__(self, nanoseconds: int = 0) -> None:
        self.nanoseconds = nanoseconds

    @classmethod
    def of(cls, seconds: float) -> Duration:
        """Return the duration of some seconds."""
        return cls(round(seconds * _UNITS["s"]))

    @property
    def seconds(self) -> float:
        """The length in seconds."""
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
        """Return Go's text: hours, minutes and seconds, or one smaller unit with a fraction."""
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
    """Read a duration. Raises ``ValueError`` for any other text."""
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
