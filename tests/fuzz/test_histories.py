"""Random histories on the programs as they are. Those that have failed once are kept here, too."""

from __future__ import annotations

import pytest

from tests.fuzz.player import Player
from tests.fuzz.report import as_test
from tests.fuzz.run import first_failure, history

HISTORIES = 12
"""Some ten seconds."""


@pytest.mark.parametrize("seed", range(HISTORIES))
def test_the_programs_do_in_a_random_history_what_the_model_says(player: Player, seed: int) -> None:
    runs = player.runs
    failure = first_failure(player, seed)
    assert failure is None, f"keep this test:\n{as_test(failure)}"
    assert player.runs > runs + 1000


def test_histories_open_connections_and_see_them_end(player: Player) -> None:
    """Otherwise a history would hold nothing against the model."""
    before = player.seen.copy()
    for seed in range(100, 103):
        for event in history(player, seed):
            player.step(event)
    seen = player.seen - before
    for name in (
        *("connections opened", "connections masqueraded", "connections collected"),
        *("packets of clients", "packets of servers", "first packets refused"),
        *("packets of no connection reset", "writes of the control plane"),
        *("errors about packets", "later fragments", "fragments that wait"),
    ):
        assert seen[name] >= 10, f"{name}: {seen}"


def test_a_seed_replays(player: Player) -> None:
    """The same random choices, and so the same backends and ports."""
    states = []
    for _ in range(2):
        for event in history(player, 5, events=800):
            player.step(event)
        states.append({key: str(made) for key, made in player.model.connections.items()})
    assert states[0]
    assert states[0] == states[1]
