"""The aims as rows of text."""

from __future__ import annotations

from typing import NamedTuple

from bpfsvc.bench.aims import Aim
from bpfsvc.bench.report.numbers import digits, factor

JUDGED = (
    "Two modes are compared by the median of the ratios of their rounds. The best path is chosen "
    "by each half of the rounds and judged by the other half: if it were judged by the rounds that "
    "chose it, the luckiest of equal modes would look better than it is."
)
"""How aims are judged, in words."""


class Row(NamedTuple):
    """One aim, as it is printed."""

    text: str
    goal: str
    measured: str
    quartiles: str
    verdict: str


def row(aim: Aim) -> Row:
    """Say an aim; the verdict is a word, so that no colour is needed."""
    unit = f" {aim.unit}" if aim.unit else ""
    goal = f"{'≤' if aim.at_most else '≥'} {aim.goal:g}{unit}"
    if aim.measured is None:
        return Row(aim.text, goal, "", "", f"not measured: {aim.remark}")
    quartiles = " to ".join(_value(aim, each, bare=True) for each in aim.quartiles or ())
    verdict = "reached" if aim.reached else "MISSED"
    return Row(
        aim.text,
        goal,
        _value(aim, aim.measured),
        quartiles,
        f"{verdict} ({aim.remark})" if aim.remark else verdict,
    )


def _value(aim: Aim, value: float, *, bare: bool = False) -> str:
    if not aim.unit:
        return factor(value)
    return digits(value) if bare else f"{digits(value)} {aim.unit}"
