"""``make fuzz``: random histories for some minutes."""

from __future__ import annotations

import argparse
import os
import sys
import time
from pathlib import Path

from bpfsvc.datapath.loader.source import load
from bpfsvc.devtools.lab import sandbox
from tests.fuzz.controlled_node import compiled
from tests.fuzz.report import Total, as_test, figures, write_figures
from tests.fuzz.run import work_in_parallel
from tests.packets.node import SIZES


def main() -> int:
    """Play histories; print failures as tests. The status is 1 if there are any."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--minutes", type=float, default=1.0)
    parser.add_argument("--seed", type=int, default=1, help="of the run: the same, the same run")
    parser.add_argument("--processes", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--write", type=Path, metavar="FILE", help="put the figures there")
    arguments = parser.parse_args()
    sandbox.enter()
    compiled()
    deadline = time.monotonic() + arguments.minutes * 60
    result = work_in_parallel(arguments.seed, arguments.processes, deadline)
    for failure in result.failures:
        print(f"\n{as_test(failure)}")
    text = figures(result, arguments.seed, arguments.processes)
    print(text)
    if not result.runs:
        print("nothing was run: give it more minutes", file=sys.stderr)
        return 2
    if arguments.write and not result.failures:
        total = Total.read(arguments.write, load(SIZES).code_digest)
        write_figures(arguments.write, text, total.with_run(arguments.seed, result.runs))
    return bool(result.failures)


if __name__ == "__main__":
    sys.exit(main())
