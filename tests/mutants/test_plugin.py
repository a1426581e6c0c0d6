"""A change that tests see, one that they do not see, and what is no change."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from bpfsvc.base.map_sizes import Sizes
from bpfsvc.datapath.loader import shipped
from bpfsvc.datapath.loader.source import load
from tests.mutants.__main__ import nodes_of
from tests.mutants.plugin import JOBS, RESULTS

_TEST = "tests/packets/test_hairpin.py"


Job = tuple[str, list[list[str]]]
"""What stands in the place of a line, and the programs that are compiled in each stage."""


def tried(tmp_path: Path, line: int, jobs: list[Job]) -> list[dict[str, Any]]:
    """Have the plugin try changes of a line with three tests; return its answers."""
    tests = nodes_of([_TEST])[:3]
    (tmp_path / "jobs").write_text(
        "".join(
            json.dumps(
                {
                    "number": n,
                    "at": line,
                    "after": after,
                    "stages": [(programs, tests) for programs in stages],
                    "lab": [],
                }
            )
            + "\n"
            for n, (after, stages) in enumerate(jobs)
        )
    )
    shipped.ship(tmp_path / "compiled")
    environment = {
        **os.environ,
        JOBS: str(tmp_path / "jobs"),
        RESULTS: str(tmp_path / "results"),
        "BPFSVC_LAB_COMPILED": str(tmp_path / "compiled"),
    }
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider"]
    command += ["-p", "bpfsvc.devtools.lab.pytest_plugin", "-p", "tests.mutants.plugin", _TEST]
    run = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert (tmp_path / "results").exists(), run.stdout + run.stderr
    return [json.loads(line) for line in (tmp_path / "results").read_text().splitlines()]


@pytest.mark.slow
def test_each_change_is_tried_by_itself_and_leaves_nothing_behind(tmp_path: Path) -> None:
    lines = load(Sizes()).text.split("\n")
    first = next(n for n, line in enumerate(lines) if "packet ? first_packet(skb" in line)
    shot = "\treturn settings && packet ? TC_ACT_SHOT : TC_ACT_SHOT;"
    nowhere: list[list[str]] = [[]]
    here, elsewhere = [["step_first"]], [["step_icmp"], ["step_first"]]
    jobs: list[Job] = [
        (lines[first], nowhere),
        (shot, here),
        (shot, elsewhere),
        (lines[first] + " /* a comment */", elsewhere),
        ("\treturn nothing;", here),
        ("\treturn *((int *)settings + 100000);", here),
        (lines[first], nowhere),
    ]
    answers = tried(tmp_path, first, jobs)
    assert [answer["state"] for answer in answers] == [
        "survived",
        "killed",
        "killed",
        "same code",
        "does not compile",
        "refused",
        "survived",
    ], answers
