"""One node for all histories of a test run; nodes with planted faults are made by their tests."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import ExitStack
from typing import Protocol

import pytest

from bpfsvc.datapath.loader.source import CSource
from bpfsvc.devtools.lab import sandbox
from tests.fuzz.controlled_node import Change, ControlledNode
from tests.fuzz.player import Player


class MakePlayer(Protocol):
    """Makes a player of a node whose programs are changed, or are of another source."""

    def __call__(self, change: Change = ..., source: CSource | None = None) -> Player: ...


@pytest.fixture(scope="session")
def make_player() -> Iterator[MakePlayer]:
    """Make players of nodes whose programs are changed."""
    sandbox.require()
    with ExitStack() as cleanup:
        made = 0

        def make(change: Change = lambda build: build, source: CSource | None = None) -> Player:
            nonlocal made
            made += 1
            node = ControlledNode(sandbox.BPF_ROOT / f"fuzz-test-{made}", change, source)
            cleanup.callback(node.pinned.close)
            return Player(node)

        yield make


@pytest.fixture(scope="session")
def loaded(make_player: MakePlayer) -> Player:
    return make_player()


@pytest.fixture
def player(loaded: Player) -> Iterator[Player]:
    """A player of the programs as they are, on one CPU: each has entries of its own."""
    allowed = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {min(allowed)})
    yield loaded
    os.sched_setaffinity(0, allowed)
