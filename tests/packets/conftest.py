"""One node for all packet tests: compiling takes longer than all of them together."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from bpfsvc.lab import sandbox
from tests.packets.node import Node


@pytest.fixture(scope="session")
def loaded() -> Iterator[Node]:
    sandbox.require()
    node = Node(sandbox.BPF_ROOT / "packets")
    yield node
    node.pinned.close()


@pytest.fixture
def node(loaded: Node) -> Node:
    """A node without Services or connections."""
    loaded.reset()
    return loaded
