"""Which endpoints flap, of all that have changed."""

from __future__ import annotations

from bpfsvc.inspect.flapping import flapping
from bpfsvc.model.answers import TOGETHER, ChangeRecord, Names

POD, OTHER = "10.244.1.2:8080", "10.244.1.3:8080"


def change(at: float, added: list[str], removed: list[str]) -> ChangeRecord:
    endpoints = Names(added, removed)
    return ChangeRecord(at=at, services=["shop/web"], what="changed", endpoints=endpoints)


def test_an_endpoint_that_left_and_came_back_again_and_again_flaps() -> None:
    changes = [change(1, [OTHER], []), change(2, [], [POD]), change(3, [POD], [])]
    changes += [change(4, [], [POD]), change(5, [POD], [OTHER]), change(6, [], [POD])]
    (flap,) = flapping(changes)
    assert flap.text() == (
        "shop/web: 10.244.1.2:8080 FLAPS: it left 3 times and came back 2 times;"
        " look at the readiness probe of its pod"
    )
    assert (flap.first, flap.last) == (2, 6)


def test_rollouts_and_the_start_of_an_agent_are_no_flapping() -> None:
    rollout = [change(at, [f"10.244.1.{at}:80"], [f"10.244.1.{at + 1}:80"]) for at in range(9)]
    start = ChangeRecord(at=0, services=["shop/a", "shop/b"], what=TOGETHER)
    assert flapping([start, *rollout]) == []
    assert flapping([change(1, [], [POD]), change(2, [POD], []), change(3, [], [POD])]) == []
