"""``python -m bpfsvc.devtools.demo``: the whole demonstration; exit status 1 if it fails."""

from __future__ import annotations

import argparse
import subprocess
import sys
import time
from contextlib import ExitStack
from pathlib import Path

from bpfsvc.base.errors import BpfsvcError
from bpfsvc.devtools.demo import stay
from bpfsvc.devtools.demo.disruptions import DISRUPTIONS
from bpfsvc.devtools.demo.dumps import dumps
from bpfsvc.devtools.demo.screen import Screen
from bpfsvc.devtools.demo.testbed import DemoTestbed, Layout, Overlay
from bpfsvc.devtools.demo.traffic import KINDS, DemoCheck
from bpfsvc.devtools.lab import sandbox

_OTHER_STEPS = 3  # lab, agents, maps
_SCRIPTS = Path("build/demo")
_READY = "ready: "  # how the agent's line about the first synchronisation begins


def show(screen: Screen, testbed: DemoTestbed) -> list[tuple[str, list[DemoCheck]]]:
    """Go through all kinds of traffic and all disruptions; return the checks of each."""
    rows: list[tuple[str, list[DemoCheck]]] = []
    for number, (title, run) in enumerate(KINDS, 1):
        with screen.step(title):
            rows.append((f"{number}  {title}", list(run(testbed))))
        screen.section(*rows[-1])
    with screen.step("maps"):
        screen.console.print()
        for dump in dumps(testbed):
            screen.text(dump.command, dump.text)
    for title, disrupt in DISRUPTIONS:
        with screen.step(title):
            rows.append((f"   {title}", list(disrupt(testbed, screen.note))))
        screen.section(*rows[-1])
    return rows


def run(layout: Layout, overlay: Overlay | None, scripts: Path | None) -> bool:
    """Run the demonstration; return True if all checks passed.

    ``scripts``: the lab stays until Ctrl-C, and this directory gets the scripts that lead into it.
    """
    began = time.monotonic()
    with Screen(len(KINDS) + len(DISRUPTIONS) + _OTHER_STEPS) as screen, ExitStack() as stack:
        with screen.step("building two nodes, four pods and a client"):
            testbed = stack.enter_context(DemoTestbed(layout, overlay))
        screen.headline(f"two nodes, four pods and a client: {layout}, {overlay or 'no overlay'}")
        with screen.step("starting an agent on each node"):
            testbed.cluster.start()
        for name, agent in testbed.cluster.agents.items():
            agent.expect(_READY)
            line = next(line for line in agent.log.splitlines() if _READY in line)
            screen.note(f"{name}: {line[line.index(_READY) :]}")
        rows = show(screen, testbed)
        screen.summary(rows, time.monotonic() - began)
        if scripts:
            stay.write_scripts(testbed, scripts)
            screen.go_on("From another terminal, as root:", stay.commands(testbed, scripts))
            screen.headline("the lab stays until Ctrl-C")
            stay.wait_for_interrupt()
        else:
            screen.note("make demo ARGS=--stay keeps the lab, to look around")
    return all(check.passed for _, checks in rows for check in checks)


def main() -> int:
    """Read the command line and run."""
    parser = argparse.ArgumentParser(prog="python -m bpfsvc.devtools.demo", description=__doc__)
    parser.add_argument("--layout", choices=("routed", "bridge"), default="routed")
    parser.add_argument("--vxlan", action="store_true", help="pod traffic between nodes by VXLAN")
    parser.add_argument(
        "--stay", action="store_true", help="keep the lab until Ctrl-C, to look around"
    )
    words = parser.parse_args()
    try:
        sandbox.enter()
        overlay: Overlay | None = "vxlan" if words.vxlan else None
        return 0 if run(words.layout, overlay, _SCRIPTS if words.stay else None) else 1
    except (BpfsvcError, TimeoutError, subprocess.TimeoutExpired) as error:
        print(f"demo: {error}", file=sys.stderr)
        return 1


if __name__ == "__main__":
    sys.exit(main())
