"""The process of the page: it runs while somebody looks, and the agent outlives it."""

from __future__ import annotations

import json
import os
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from bpfsvc.agent.page_process import PageProcess
from bpfsvc.devtools.lab.patience import wait
from bpfsvc.http.ports import bind
from tests.http.asking import ask, body


@contextmanager
def served(pin_root: Path, log: list[str], port: int = 0) -> Iterator[PageProcess]:
    """Serve the page of a place without an agent until the end of the block."""
    page = PageProcess(("127.0.0.1", port), pin_root, None, log.append)
    page.start()
    try:
        if not port:
            wait(lambda: page.port > 0, "the port", 10)
        yield page
    finally:
        page.stop()


def children() -> list[int]:
    """Return the processes of pages that this process has."""
    texts = [file.read_text() for file in Path("/proc/self/task").glob("*/children")]
    return [
        int(word)
        for text in texts
        for word in text.split()
        if b"--listener" in Path(f"/proc/{word}/cmdline").read_bytes()
    ]


def get(port: int, path: str) -> bytes:
    return ask(port, path, host_header="localhost", seconds=60)


def test_without_a_look_there_is_no_process_and_the_first_look_starts_it(tmp_path: Path) -> None:
    log: list[str] = []
    with served(tmp_path, log) as page:
        assert children() == []
        assert b"<title>bpfsvc</title>" in get(page.port, "/")
        (process,) = children()
        assert Path(f"/proc/{process}/oom_score_adj").read_text() == "1000\n"
        assert b" 404 " in get(page.port, "/elsewhere")
        assert children() == [process]
    assert children() == []
    assert log == []


def test_a_node_without_programs_says_so(tmp_path: Path) -> None:
    with served(tmp_path, []) as page:
        answer = json.loads(body(get(page.port, "/api/status")))
    assert answer["error"] == f"bpfsvc is not loaded: nothing is pinned at {tmp_path}/current"


def test_a_process_that_is_killed_is_told_and_waiting_clients_are_answered(tmp_path: Path) -> None:
    log: list[str] = []
    with served(tmp_path, log) as page:
        get(page.port, "/")
        (process,) = children()
        os.kill(process, signal.SIGKILL)
        wait(lambda: bool(log), "a line in the log", 10)
        assert log == [
            "the page of this node has failed: its process ended with status -9;"
            " it may be started again in 10 s"
        ]
        assert children() == []


def test_why_the_process_ended_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What it writes to stderr is a part of the agent's line, not a line of its own."""
    log: list[str] = []
    (tmp_path / "python").write_text("#!/bin/sh\necho 'Error: no pins' >&2; exit 3\n")
    (tmp_path / "python").chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(tmp_path / "python"))
    with served(tmp_path, log) as page:
        with suppress(ConnectionResetError):
            get(page.port, "/")
        wait(lambda: bool(log), "a line in the log", 10)
    assert log == [
        "the page of this node has failed: its process ended with status 3 (Error: no pins);"
        " it may be started again in 10 s"
    ]


def test_a_taken_port_is_told_once_and_ends_nothing(tmp_path: Path) -> None:
    log: list[str] = []
    with bind("127.0.0.1", 0) as other:
        port = other.getsockname()[1]
        with served(tmp_path, log, port):
            wait(lambda: bool(log), "a line in the log", 10)
    text = f"cannot serve the page at 127.0.0.1:{port}: Address already in use"
    assert log == [f"{text}; trying again every 5 s"]
