"""One node and one machine for all tests of interleavings."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

from bpfsvc.devtools.lab import sandbox
from tests.fuzz.controlled_node import ControlledNode
from tests.interleavings.node import machine_of
from tests.interleavings.scenarios import World


@pytest.fixture(scope="session")
def loaded_world() -> Iterator[World]:
    sandbox.require()
    machine, names = machine_of()
    node = ControlledNode(sandbox.BPF_ROOT / "interleavings-test")
    yield World(node, machine, names)
    node.pinned.close()


@pytest.fixture
def world(loaded_world: World) -> Iterator[World]:
    """The world, on one CPU: each has entries of its own."""
    allowed = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {min(allowed)})
    yield loaded_world
    os.sched_setaffinity(0, allowed)
