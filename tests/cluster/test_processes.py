"""Processes that outlive a command are found again, and no other process is taken for one."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from bpfsvc.devtools.lab.patience import wait
from tests.cluster.processes import Processes


@pytest.fixture
def processes(tmp_path: Path) -> Iterator[Processes]:
    """Records in a folder; what runs is ended."""
    made = Processes(tmp_path)
    yield made
    for name in made.names():
        made.stop(name, kill=True)


def test_a_process_is_found_by_its_record_and_ends(processes: Processes) -> None:
    number = processes.start("sleeper", ["sleep", "1000"])
    assert Processes(processes.folder).number("sleeper") == number
    processes.stop("sleeper")
    assert not Path(f"/proc/{number}").exists()
    assert processes.number("sleeper") is None
    assert processes.names() == []


def test_a_process_that_ignores_the_request_is_killed(processes: Processes) -> None:
    stubborn = "trap '' TERM; echo ready; while :; do sleep 1000; done"
    processes.start("stubborn", ["sh", "-c", stubborn])
    log = processes.log("stubborn")
    wait(lambda: "ready" in log.read_text(), "the process ignores the signal")
    processes.stop("stubborn", timeout=0.1)
    assert processes.number("stubborn") is None


def test_the_output_is_in_the_log(processes: Processes) -> None:
    processes.start("speaker", ["sh", "-c", "echo said; echo complained >&2"])
    wait(lambda: processes.number("speaker") is None, "the end of the process")
    assert processes.log("speaker").read_text() == "said\ncomplained\n"


def test_a_process_that_ended_before_it_was_recorded_does_not_run(processes: Processes) -> None:
    number = processes.start("short", ["true"])
    os.waitpid(number, 0)
    processes.record("short", number)
    assert processes.number("short") is None


def test_another_process_with_the_same_number_is_left_alone(processes: Processes) -> None:
    number = processes.start("sleeper", ["sleep", "1000"])
    record = processes.folder / "sleeper.pid"
    recorded, started = json.loads(record.read_text())
    record.write_text(json.dumps([recorded, started - 1]))
    processes.stop("sleeper")
    os.kill(number, 0)
    processes.record("sleeper", number)


def test_stopping_what_never_ran_is_no_error(processes: Processes) -> None:
    processes.stop("nothing")
