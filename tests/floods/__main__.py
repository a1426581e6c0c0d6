"""``make floods``: all floods, over both families, and a table of what clients got."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from bpfsvc.devtools.lab import sandbox
from tests.docs.figures import write_section
from tests.floods.measure import RATE, ROWS, SECONDS, Outcome, Row, running_scene

_NAME = "make floods"


def main() -> int:
    """Measure; the status is 1 if a connection that was open before a flood has lost anything."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("words", nargs="*", help="only floods whose names have one of these")
    parser.add_argument("--seconds", type=float, default=SECONDS, help="of each flood")
    parser.add_argument("--write", type=Path, metavar="FILE", help="put the table there")
    arguments = parser.parse_args()
    sandbox.enter()
    outcomes = []
    with running_scene() as scene:
        for row in _rows(arguments.words):
            for family in (4, 6):
                outcome = scene.measure(row, family, seconds=arguments.seconds)
                print(_line(outcome), flush=True)
                outcomes.append(outcome)
    if arguments.write:
        write_section(arguments.write, _NAME, _table(outcomes))
    return any(outcome.lost for outcome in outcomes)


def _rows(words: list[str]) -> list[Row]:
    """Return the floods whose names have one of these words; without words all floods."""
    return [row for row in ROWS if not words or any(word in str(row) for word in words)]


def _table(outcomes: list[Outcome]) -> str:
    head = (
        f"{RATE:,} packets a second were offered for some seconds each.\n\n"
        "| flood, Service | family | sent/s | exchanges of open connections, lost "
        "| new ones/s: before, during | SYNs again | failed |\n|---|---|---|---|---|---|---|\n"
    )
    return head + "".join(f"{_line(outcome)}\n" for outcome in outcomes)


def _line(outcome: Outcome) -> str:
    return (
        f"| {outcome.name} | IPv{outcome.family} | {outcome.sent / outcome.seconds:,.0f} "
        f"| {outcome.exchanges:,}, {sum(outcome.lost.values())} "
        f"| {outcome.before:,.0f}, {outcome.during:,.0f} ({outcome.kept:.2f}) "
        f"| {outcome.repeated} | {sum(outcome.refused.values())} |"
    )


if __name__ == "__main__":
    sys.exit(main())
