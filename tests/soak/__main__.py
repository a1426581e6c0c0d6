"""``make soak``: a long life of two nodes, and what grew meanwhile."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from bpfsvc.devtools.lab import sandbox
from tests.docs.figures import write_section
from tests.soak.life import live
from tests.soak.report import document, table


def main() -> int:
    """Live; the status is 1 if a connection was lost, or if something grows or was left."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--hours", type=float, default=1.0)
    parser.add_argument("--every", type=float, default=10.0, help="seconds between two samples")
    parser.add_argument("--seed", type=int, default=1, help="of the run")
    parser.add_argument("--write", type=Path, metavar="FILE", help="put the figures there")
    arguments = parser.parse_args()
    sandbox.enter()
    life = live(arguments.hours * 3600, arguments.every, arguments.seed)
    print(table(life))
    text = document(life)
    print(text)
    if arguments.write and life.is_good:
        write_section(arguments.write, "make soak", text)
    return not life.is_good


if __name__ == "__main__":
    sys.exit(main())
