"""Whole numbers, as annotations write them."""

from __future__ import annotations

_SHOWN = 40
"""Letters of a bad value in an error: annotations may be long."""


def shortened(text: str) -> str:
    """Return a bad value as an error shows it."""
    return repr(text[:_SHOWN])


def parse_number(text: str, least: int, most: int, what: str) -> int:
    """Read a number without a sign. Raises ``ValueError`` with one line, which begins ``what``."""
    digits = text.strip()
    if digits.isascii() and digits.isdigit() and len(digits) <= _SHOWN:
        number = int(digits)
        if least <= number <= most:
            return number
    raise ValueError(f"{what} must be {least} to {most}, not {shortened(digits)}")
