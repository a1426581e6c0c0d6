"""``make interleavings``: all scenarios, and their figures."""

from __future__ import annotations

import argparse
import sys
import time
from collections import Counter
from pathlib import Path

from bpfsvc.devtools.lab import sandbox
from tests.docs.figures import measured, write_section
from tests.fuzz.controlled_node import ControlledNode
from tests.interleavings.explorer import TooMany
from tests.interleavings.node import machine_of
from tests.interleavings.scenarios import Scenario, World, scenarios

_LEFT_OUT = """\
A state is one order of what two CPUs can see of each other; each is visited once. Left out:
scenarios that were not asked for, or were given up because they have more states than the command
allows; IPv6, XDP and sockets; stores that another CPU sees in another order than they were
made."""

_BAD = "bad ends"
_FREED = "scenarios that end badly where a freed row is given to another entry at once"
_MOST_KEPT = 1_000_000
_FREED_SO_FAR = f"{_FREED}, and else not within {_MOST_KEPT:,} states"


def main() -> int:
    """Explore the scenarios whose names have all words that were given."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("words", nargs="*", help="of the scenarios' names")
    parser.add_argument("--states", type=int, default=100_000, help="at most, of a scenario")
    parser.add_argument("--write", type=Path, metavar="FILE", help="put the figures there")
    arguments = parser.parse_args()
    sandbox.enter()
    machine, names = machine_of()
    world = World(ControlledNode(sandbox.BPF_ROOT / "interleavings"), machine, names)
    counts: Counter[str] = Counter()
    began = time.monotonic()
    for scenario in scenarios():
        if not all(word in str(scenario) for word in arguments.words):
            continue
        try:
            result, judge = world.explored(scenario, arguments.states)
        except TooMany:
            counts["scenarios given up"] += 1
            print(f"{scenario}: given up", flush=True)
            continue
        print(f"{scenario}: {result.states} states, {result.ends} ends", flush=True)
        counts["scenarios"] += 1
        counts["states"] += result.states
        counts["steps"] += result.steps
        counts["ends"] += result.ends
        counts["ends with a count of half-open pairs that the agent has to mend"] += (
            judge.miscounted
        )
        if result.problem:
            print(result.problem, *result.schedule, sep="\n  ", flush=True)
            counts[_kind_of_problem(world, scenario)] += 1
    asked = " ".join([*arguments.words, f"--states {arguments.states}"])
    return _report(asked, counts, time.monotonic() - began, arguments.write)


def _kind_of_problem(world: World, scenario: Scenario) -> str:
    """Return what a bad end counts as, by a search where no row of a map is given away at once."""
    try:
        result, _ = world.explored(scenario, _MOST_KEPT, gives_away=False)
    except TooMany:
        return _FREED_SO_FAR
    return _BAD if result.problem else _FREED


def _report(asked: str, counts: Counter[str], seconds: float, write: Path | None) -> int:
    rows = [(name, f"{count:,}") for name, count in counts.items() if name != _BAD]
    rows += [("time", f"{seconds:,.0f} s"), (_BAD, str(counts[_BAD]))]
    text = measured(f'make interleavings ARGS="{asked}"', rows)
    print(text)
    if not counts["scenarios"]:
        print("nothing was explored: no scenario has these words", file=sys.stderr)
        return 2
    if write and not counts[_BAD]:
        write_section(write, "make interleavings", f"{text}\n{_LEFT_OUT}")
    return bool(counts[_BAD])


if __name__ == "__main__":
    sys.exit(main())
