"""A benchmark that is interrupted leaves nothing on the machine."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from bpfsvc.devtools.lab import sandbox
from bpfsvc.devtools.lab.patience import wait


@pytest.fixture
def running() -> Iterator[subprocess.Popen[bytes]]:
    """A benchmark in another sandbox that has begun to measure."""
    words = ["bench", "--suites", "pods", "--modes", "tc", "--services", "1", "--rounds", "1000"]
    process = subprocess.Popen(
        # Another network namespace, or it would take this sandbox for its own.
        ["unshare", "-n", sys.executable, "-m", "bpfsvc", *words],
        start_new_session=True,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        cwd=Path(__file__).parents[2],
    )
    try:
        yield process
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
        process.communicate()


@pytest.mark.slow
def test_an_interrupted_benchmark_leaves_nothing(running: subprocess.Popen[bytes]) -> None:
    """As ^C does it: the whole group of the terminal gets the signal at once."""
    wait(lambda: _loads(running.pid) >= 2, "clients and servers of two testbeds", timeout=60)
    assert running.poll() is None
    assert list(sandbox.CGROUP_ROOT.rglob("bpfsvc-lab-*"))
    os.killpg(running.pid, signal.SIGINT)
    assert running.wait(30) == 130
    assert running.stderr is not None
    assert running.stderr.read().splitlines()[-1] == b"Error: interrupted"
    wait(lambda: _session(running.pid) == [], "the end of all processes", timeout=2)
    assert list(sandbox.CGROUP_ROOT.rglob("bpfsvc-lab-*")) == []


def _session(leader: int) -> list[str]:
    """Return the names of the processes of a session."""
    names = []
    for file in Path("/proc").glob("[0-9]*/stat"):
        try:
            name, _, fields = file.read_text().partition("(")[2].rpartition(")")
        except (FileNotFoundError, ProcessLookupError):
            continue
        if int(fields.split()[3]) == leader:
            names.append(name)
    return names


def _loads(leader: int) -> int:
    return _session(leader).count("load")
