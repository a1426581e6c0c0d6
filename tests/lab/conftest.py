"""Tests with real sockets: they run in a sandbox or they fail.

A skipped kernel test is a hole in the net, so a missing sandbox is an error and no reason to skip.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import cast

import pytest

from bpfsvc.lab import sandbox
from bpfsvc.lab.dial import Protocol
from tests.lab.scene import FAMILIES, NETWORKS, TRANSPORTS, Scene, standing


@pytest.fixture(autouse=True, scope="session")
def _in_a_sandbox() -> None:
    sandbox.require()


@pytest.fixture(scope="session", params=list(NETWORKS.values()), ids=list(NETWORKS))
def scene(request: pytest.FixtureRequest) -> Iterator[Scene]:
    """A lab of every kind, with agents and standing Services. Tests leave it as it was."""
    with standing(**request.param) as made:
        yield made


@pytest.fixture(params=FAMILIES, ids=["IPv4", "IPv6"])
def family(request: pytest.FixtureRequest) -> int:
    """Both families."""
    return int(request.param)


@pytest.fixture(params=TRANSPORTS)
def transport(request: pytest.FixtureRequest) -> Protocol:
    """TCP and UDP."""
    return cast(Protocol, request.param)
