"""One node for all histories of a test run; nodes with planted faults are made by their tests."""

from __future__ import annotations

import itertools
import os
from collections.abc import Iterator
from contextlib import ExitStack
from typing import Protocol

import pytest

from bpfsvc.datapath.loader.source import CSource
from bpfsvc.devtools.lab import sandbox
from tests.fuzz.controlled_node import Change, ControlledNode
from tests.fuzz.network import network
from tests.fuzz.player import Player


class MakePlayer(Protocol):
    """Makes a player of a node whose programs are changed, or are of another source."""

    def __call__(self, change: Change = ..., source: CSource | None = None) -> Player: ...


_serial = itertools.count(1)


def _made(ending: ExitStack, change: Change, source: CSource | None) -> Player:
    sandbox.require()
    name = f"fuzz-test-{next(_serial)}"
    node = ControlledNode(sandbox.BPF_ROOT / name, change, source)
    ending.callback(node.pinned.close)
    return Player(node, ending.enter_context(network(node, name)))


@pytest.fixture
def make_player() -> Iterator[MakePlayer]:
    """Make players of nodes whose programs are changed, for one test: each has a hundred files."""
    with ExitStack() as ending:

        def make(change: Change = lambda build: build, source: CSource | None = None) -> Player:
            made = _made(ending, change, source)
            ending.enter_context(made.network.entered())
            return made

        yield make


@pytest.fixture(scope="session")
def loaded() -> Iterator[Player]:
    with ExitStack() as ending:
        yield _made(ending, lambda build: build, None)


@pytest.fixture
def player(loaded: Player) -> Iterator[Player]:
    """A player of the programs as they are, on one CPU: each has entries of its own."""
    allowed = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {min(allowed)})
    with loaded.network.entered():
        yield loaded
    os.sched_setaffinity(0, allowed)
