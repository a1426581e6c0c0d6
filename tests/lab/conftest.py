"""Tests with real sockets: they run in a sandbox or they fail.

A missing sandbox is an error and no reason to skip, because a skipped kernel test proves nothing.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import cast

import pytest

from bpfsvc.devtools.lab import sandbox
from bpfsvc.devtools.lab.dial import Protocol
from tests.lab.testbed import FAMILIES, NETWORKS, TRANSPORTS, Testbed, running_testbed


@pytest.fixture(autouse=True, scope="session")
def _in_a_sandbox() -> None:
    sandbox.require()


@pytest.fixture(scope="session", params=list(NETWORKS.values()), ids=list(NETWORKS))
def testbed(request: pytest.FixtureRequest) -> Iterator[Testbed]:
    """A lab of every kind, with agents and a fixed set of Services. Tests must not change them."""
    with running_testbed(**request.param) as made:
        yield made


@pytest.fixture(params=FAMILIES, ids=["IPv4", "IPv6"])
def family(request: pytest.FixtureRequest) -> int:
    """Both families."""
    return int(request.param)


@pytest.fixture(params=TRANSPORTS)
def transport(request: pytest.FixtureRequest) -> Protocol:
    """TCP and UDP."""
    return cast(Protocol, request.param)
