"""The process that compiles: what it is sent, and when it is killed."""

from __future__ import annotations

import os
import threading
from pathlib import Path

import pytest

from bpfsvc.base.errors import Interrupted
from bpfsvc.datapath.loader.compiler import CompileRequest
from bpfsvc.datapath.loader.compiler_process import _run_compiler

REQUEST = CompileRequest(text="x" * 1_000_000, digest="", defines={}, include="")
"""More than a pipe holds."""


def compiler(directory: Path, script: str) -> str:
    """Return a command in place of Python."""
    file = directory / "python"
    file.write_text(f"#!/bin/sh\n{script}\n")
    file.chmod(0o755)
    return str(file)


def test_a_compiler_that_is_slow_to_start_gets_all_of_the_sources(tmp_path: Path) -> None:
    """A node without processor time needs seconds to start a process."""
    python = compiler(tmp_path, "sleep 0.5; exec wc -c")
    answer = _run_compiler(python, REQUEST, lambda: False)
    assert isinstance(answer, bytes)
    assert int(answer) > len(REQUEST.text)


def test_a_compiler_whose_result_is_not_needed_is_killed(tmp_path: Path) -> None:
    started, unwanted = tmp_path / "started", threading.Event()
    os.mkfifo(started)
    python = compiler(tmp_path, f"echo $$ > {started}; exec sleep 600")

    def end() -> None:
        with started.open() as file:
            pids.append(int(file.readline()))
        unwanted.set()

    pids: list[int] = []
    ending = threading.Thread(target=end)
    ending.start()
    with pytest.raises(Interrupted):
        _run_compiler(python, REQUEST, unwanted.is_set)
    ending.join()
    assert not Path(f"/proc/{pids[0]}").exists()
