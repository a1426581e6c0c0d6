"""Numbers as text: three digits say more than any benchmark can promise."""

from __future__ import annotations

from bpfsvc.bench.figures import Spread
from bpfsvc.bench.results import Cell

_STEPS = ((1e9, "G"), (1e6, "M"), (1e3, "k"))


def short(value: float, *, trim: bool = False) -> str:
    """Give three digits, with k, M or G: 12.3k; or ``trim`` zeros at their end."""
    text = "{:.3g}".format if trim else digits
    for size, sign in _STEPS:
        if abs(value) >= size * 0.9995:
            return text(value / size) + sign
    return text(value)


def digits(value: float) -> str:
    """Give three digits, or the whole number if it is longer: 0.123, 12.3, 1,234."""
    size = abs(value)
    if not size:
        return "0"
    if size >= 99.95:
        return f"{value:,.0f}"
    if size >= 9.995:
        return f"{value:.1f}"
    return f"{value:.2f}" if size >= 0.9995 else f"{value:.3g}"


def factor(value: float) -> str:
    """Give a ratio: three places after the point, so that 0.997 is not taken for 1; or 12.3."""
    return f"{value:.3f}" if abs(value) < 9.9995 else digits(value)


def signed(value: float) -> str:
    """Give a difference."""
    return f"+{digits(value)}" if value >= 0 else digits(value)


def span(values: tuple[float, ...]) -> str:
    """Say how far the quartiles lie from the median, in percent; at least one value."""
    spread = Spread.of(values)
    if len(values) < 2 or not spread.median:
        return ""
    half = (spread.three_quarters - spread.quarter) / 2 / spread.median
    return f"±{abs(half) * 100:.0f}%"


def measured(cell: Cell) -> str:
    """Give the median of a cell as its unit is read best."""
    return short(cell.median) if cell.more_is_better else digits(cell.median)
