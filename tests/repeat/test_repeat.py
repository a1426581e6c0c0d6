"""Tests that fail now and then are listed with how often they did."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

FLAKY = """
from pathlib import Path

RUNS = Path(__file__).with_name("runs")

def test_fails_each_second_time():
    runs = int(RUNS.read_text()) if RUNS.exists() else 0
    RUNS.write_text(str(runs + 1))
    assert runs % 2, "an even run"

def test_is_reliable():
    pass
"""


def _repeat(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "tests.repeat", *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def test_a_test_that_fails_each_second_time_is_listed_with_its_count(tmp_path: Path) -> None:
    file = tmp_path / "test_flaky.py"
    file.write_text(FLAKY)
    done = _repeat("--times", "3", "--", "-c", "/dev/null", "--rootdir", str(tmp_path), str(file))
    assert done.returncode == 1
    *_, counted, message = done.stdout.splitlines()
    assert counted == "2 of 3: test_flaky.py::test_fails_each_second_time"
    assert "an even run" in message
    assert "reliable" not in done.stdout


def test_tests_that_cannot_be_run_are_said_to_be_so(tmp_path: Path) -> None:
    done = _repeat("--times", "3", "--", "-c", "/dev/null", str(tmp_path / "test_missing.py"))
    assert done.returncode == 4
    assert "test_missing.py" in done.stderr
