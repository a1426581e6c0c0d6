"""``python -m bpfsvc.demo``: the demonstration from beginning to end; exit status 1 if it fails."""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack

from bpfsvc.demo import trials
from bpfsvc.demo.cases import CASES, Check
from bpfsvc.demo.inspection import dumps
from bpfsvc.demo.screen import Screen
from bpfsvc.demo.stage import Layout, Overlay, Stage
from bpfsvc.errors import BpfsvcError
from bpfsvc.lab import sandbox

Trial = Callable[[Stage, Callable[[str], None]], Iterator[Check]]

TRIALS: tuple[tuple[str, Trial], ...] = (
    ("a Deployment rolled under load: not one failure", trials.rollout),
    ("an agent killed and restarted under load: not one failure", trials.killed_agent),
)
_OTHER_STEPS = 3  # stage, agents, maps
_READY = "ready: "  # how the agent's line about the first synchronisation begins


def show(screen: Screen, stage: Stage) -> list[tuple[str, list[Check]]]:
    """Go through all cases and trials; give what came of each."""
    rows: list[tuple[str, list[Check]]] = []
    for number, case in enumerate(CASES, 1):
        with screen.step(case.title):
            checks = list(case.checks(stage))
        _print(screen, f"{number}  {case.title}", checks)
        rows.append((f"{number}  {case.title}", checks))
    with screen.step("maps"):
        screen.console.print()
        for dump in dumps(stage):
            screen.text(dump.command, dump.text)
    for title, trial in TRIALS:
        with screen.step(title):
            checks = list(trial(stage, screen.note))
        _print(screen, f"   {title}", checks)
        rows.append((f"   {title}", checks))
    return rows


def _print(screen: Screen, title: str, checks: list[Check]) -> None:
    screen.headline(title, all(check.passed for check in checks))
    for check in checks:
        screen.check(check)


def run(layout: Layout, overlay: Overlay | None) -> bool:
    """Run the demonstration; tell whether all went well."""
    began = time.monotonic()
    with Screen(len(CASES) + len(TRIALS) + _OTHER_STEPS) as screen, ExitStack() as stack:
        with screen.step("building two nodes, four pods and a client"):
            stage = stack.enter_context(Stage(layout, overlay))
        screen.headline(f"two nodes, four pods and a client: {layout}, {overlay or 'no overlay'}")
        with screen.step("starting an agent on each node"):
            stage.cluster.start()
        for name, agent in stage.cluster.agents.items():
            agent.expect(_READY)
            line = next(line for line in agent.log.splitlines() if _READY in line)
            screen.note(f"{name}: {line[line.index(_READY) :]}")
        rows = show(screen, stage)
        screen.summary(rows, time.monotonic() - began)
    return all(check.passed for _, checks in rows for check in checks)


def main() -> int:
    """Read the command line and run."""
    parser = argparse.ArgumentParser(prog="python -m bpfsvc.demo", description=__doc__)
    parser.add_argument("--layout", choices=("routed", "bridge"), default="routed")
    parser.add_argument("--vxlan", action="store_true", help="pod traffic between nodes by VXLAN")
    words = parser.parse_args()
    try:
        sandbox.enter()
        return 0 if run(words.layout, "vxlan" if words.vxlan else None) else 1
    except (BpfsvcError, TimeoutError) as error:
        print(f"demo: {error}", file=sys.stderr)
        return 1


if __name__ == "__main__":
    sys.exit(main())
