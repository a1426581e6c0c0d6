"""A short life, with all kinds of events. ``make soak`` asks for more: see docs/testing.md."""

from __future__ import annotations

import pytest

from bpfsvc.devtools.lab import sandbox
from tests.soak.life import growths, live
from tests.soak.report import table

SECONDS = 60


@pytest.mark.slow
def test_no_tcp_connection_is_lost_and_nothing_is_left_in_a_short_life() -> None:
    """Slopes of a minute say nothing. ``make soak`` counts lost datagrams, too."""
    sandbox.require()
    life = live(SECONDS, every=2, seed=1)
    lost = [name for name in life.failures if not name.startswith("datagram ")]
    assert (lost, life.left) == ([], {}), table(life)
    assert life.events.total() > 5
    assert life.exchanges > 5000


def test_a_map_that_gets_entries_with_every_event_is_said_to_grow() -> None:
    samples = [
        (number / 100, {"node-1: backends": 100.0 + 20 * number, "node-1: pins": 90.0})
        for number in range(100)
    ]
    leaking, constant = growths(samples)
    assert (leaking.is_allowed, constant.is_allowed) == (False, True)
