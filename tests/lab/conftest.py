"""Tests with real sockets: they run in a sandbox or they fail.

A skipped kernel test is a hole in the net, so a missing sandbox is an error and no reason to skip.
"""

from __future__ import annotations

import pytest

from bpfsvc.lab import sandbox


@pytest.fixture(autouse=True, scope="session")
def _in_a_sandbox() -> None:
    sandbox.require()
