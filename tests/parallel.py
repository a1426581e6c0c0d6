"""``pytest -p tests.parallel``: how the processes of a run share the tests among them.

What costs most is a lab with its agents: each agent has the kernel verify its programs. So a
process takes all tests of a file, and all tests of a network that several files share. Files of the
lab come first, as they take longest: the others then fill what time is left.
"""

from __future__ import annotations

import re

import pytest
from xdist.remote import Producer
from xdist.scheduler import LoadScopeScheduling

_LAB, _FUZZ = "tests/lab/", "tests/fuzz/"
"""The tests of the second share programs that are compiled for them."""
_NETWORK = re.compile(r"\[(routed|bridge)(-vxlan)?(-masquerade)?-")
"""How parameters of tests of a shared network begin (``NETWORKS`` of ``tests/lab/testbed.py``)."""


def group_of(test: str) -> str:
    """Return what a test, by its pytest ID, shares its costly fixtures with."""
    file = test.partition("::")[0]
    network = _NETWORK.search(test)
    if network and file.startswith(_LAB):
        return f"{_LAB}{network[0]}"
    return _FUZZ if file.startswith(_FUZZ) else file


def pytest_xdist_make_scheduler(config: pytest.Config, log: Producer) -> LoadScopeScheduling:
    """Return a scheduling that gives each process a group of tests at a time, in their order."""
    config.option.loadscopereorder = False
    scheduling = LoadScopeScheduling(config, log)
    scheduling._split_scope = group_of
    return scheduling
