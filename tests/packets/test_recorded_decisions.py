"""What a sysdump answers: the recorded entries decide as the programs do."""

from __future__ import annotations

import json
import subprocess
import sys
from collections import Counter

from bpfsvc.devtools.lab import sandbox
from tests.packets.recorded_decisions import SCHEDULERS


def test_recorded_entries_decide_as_the_programs() -> None:
    """For the flows of the sample, of random clusters, and of Services with schedulers.

    Among these, also which endpoint a hash, a weight or the numbers of connections lead to.
    """
    sandbox.require()
    command = [sys.executable, "-m", "tests.packets.recorded_decisions", str(sandbox.COMPILED)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    decisions = [json.loads(line) for line in done.stdout.splitlines()]
    assert [flow for flow in decisions if flow[1] != flow[2]] == []
    verdicts = Counter(programs[0] for _, programs, _ in decisions)
    assert verdicts.keys() == {"dnat", "reject", "drop", "none"}
    assert min(verdicts.values()) > 3, verdicts
    chosen = Counter(flow.split()[0] for flow, programs, _ in decisions if len(programs) == 6)
    assert chosen.keys() == set(SCHEDULERS)
    refused = {flow.split()[0] for flow, programs, _ in decisions if programs[5:] == [""]}
    assert refused == {"sh", "sh,sh-port", "dh", "sed", "ovf"}
