"""What a sysdump answers: the recorded entries decide as the programs do."""

from __future__ import annotations

import json
import subprocess
import sys
from collections import Counter

from bpfsvc.devtools.lab import sandbox


def test_recorded_entries_decide_as_the_programs() -> None:
    """For the flows of the sample, and of random clusters."""
    sandbox.require()
    command = [sys.executable, "-m", "tests.packets.recorded_decisions", str(sandbox.COMPILED)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    decisions = [json.loads(line) for line in done.stdout.splitlines()]
    assert [flow for flow in decisions if flow[1] != flow[2]] == []
    verdicts = Counter(programs[0] for _, programs, _ in decisions)
    assert verdicts.keys() == {"dnat", "reject", "drop", "none"}
    assert min(verdicts.values()) > 3, verdicts
