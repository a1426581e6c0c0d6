"""Clients that are connected lose nothing in a flood, and clients that answer get connections."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from bpfsvc.devtools.lab import sandbox
from tests.floods.measure import RATE, ROWS, Row, Scene, running_scene
from tests.lab.testbed import WEB

pytestmark = pytest.mark.slow

FAMILIES = [4, 6]
"""In turn: ``make floods`` measures both with each flood."""


@pytest.fixture(scope="module")
def scene() -> Iterator[Scene]:
    sandbox.require()
    with running_scene() as scene:
        yield scene


@pytest.mark.parametrize(
    ("row", "family"),
    [
        pytest.param(row, FAMILIES[at % 2], id=str(row))
        for at, row in enumerate(row for row in ROWS if row.service)
    ],
)
def test_open_connections_lose_nothing(scene: Scene, row: Row, family: int) -> None:
    """New ones are made during the flood, too, and afterwards the agent is well."""
    outcome = scene.measure(row, family, seconds=3)
    assert outcome.sent > RATE * outcome.seconds / 10, "it is no flood"
    assert not outcome.lost
    assert outcome.during > 0
    assert not outcome.refused
    if row == Row("UDP", WEB):
        # In a flood of SYNs a backend may remember another connection by the port; a single backend
        # soon has no port left.
        assert outcome.repeated <= 1, "new connections waited for a second SYN"
