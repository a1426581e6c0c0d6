"""``pytest -p tests.branches.plugin``: note which outcomes each test has seen."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from bpfsvc.datapath import syscall
from bpfsvc.devtools.lab import sandbox
from tests.branches.recorder import DIRECTORY, MAP, Recorder, record


class _Notes:
    def __init__(self, recorder: Recorder) -> None:
        self._recorder = recorder
        self._file = Path(os.environ[DIRECTORY]) / f"{os.getpid()}.seen"

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Iterator[None]:
        """Note what was seen since the test before: this has the fixtures of the test, too."""
        try:
            return (yield)
        finally:
            if seen := self._recorder.take():
                with self._file.open("a") as file:
                    file.write(json.dumps([item.nodeid, seen]) + "\n")

    def pytest_sessionfinish(self) -> None:
        """Note what was loaded."""
        self._file.with_suffix(".loaded").write_text(json.dumps(self._recorder.loaded()))


def pytest_configure(config: pytest.Config) -> None:
    """Make a map in each process that runs tests, and none in the one that hands them out."""
    if config.getoption("dist", "no") == "no" or hasattr(config, "workerinput"):
        recorder = record()
        pin = sandbox.BPF_ROOT / "branches"
        syscall.pin(recorder.fd, pin)
        os.environ[MAP] = str(pin)
        config.pluginmanager.register(_Notes(recorder))
