"""Endpoints that come back: those of a flapping probe are counted, those of a rollout are not."""

from __future__ import annotations

from bpfsvc.agent.returned_endpoints import SECONDS, ReturnedEndpoints
from bpfsvc.model.answers import ChangeRecord, Names

POD, OTHER = "10.244.1.2:8080", "10.244.1.3:8080"


def change(
    at: float, added: list[str], removed: list[str], *, what: str = "changed", of: str = "shop/web"
) -> ChangeRecord:
    return ChangeRecord(at=at, services=[of], what=what, endpoints=Names(added, removed))


def returned(*changes: ChangeRecord) -> int:
    known = ReturnedEndpoints()
    return sum(known.note(record) for record in changes)


def test_an_endpoint_that_comes_back_is_counted_each_time() -> None:
    flaps = [
        record
        for at in range(0, 60, 20)
        for record in (change(at, [], [POD]), change(at + 10, [POD], []))
    ]
    assert returned(*flaps) == 3


def test_new_pods_of_a_rollout_have_not_come_back() -> None:
    assert returned(change(0, [OTHER], [POD]), change(10, ["10.244.1.4:8080"], [OTHER])) == 0


def test_an_endpoint_that_was_away_for_long_or_comes_to_another_service_is_not_counted() -> None:
    assert returned(change(0, [], [POD]), change(SECONDS + 1, [POD], [])) == 0
    assert returned(change(0, [], [POD]), change(1, [POD], [], of="shop/other")) == 0


def test_a_service_that_is_made_anew_has_new_endpoints() -> None:
    assert returned(change(0, [], [POD], what="removed"), change(1, [POD], [], what="added")) == 0


def test_the_endpoints_that_are_remembered_are_bounded() -> None:
    known = ReturnedEndpoints()
    for number in range(6000):
        known.note(change(0, [], [f"10.1.{number // 250}.{number % 250}:80"]))
    assert known.note(change(1, ["10.1.0.0:80"], [])) == 0
    assert known.note(change(1, ["10.1.23.249:80"], [])) == 1
