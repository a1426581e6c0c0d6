"""Frontends that several Services name."""

from __future__ import annotations

from itertools import permutations

import pytest

from bpfsvc.claims import Claims
from bpfsvc.desired import desired
from bpfsvc.rows import ServiceRows
from tests.rows.objects import CONFIG, NODE, frontend, service

SHARED = frontend("80.0.0.1 80")


def rows(name: str, *, claims: bool = True) -> ServiceRows:
    thing = service(
        name,
        clusterIP=f"10.96.0.{ord(name)}",
        externalIPs=["80.0.0.1"] if claims else [],
    )
    return desired(thing, [], NODE, CONFIG)


def winners(claims: Claims, *names: str) -> list[str]:
    return [
        name
        for name in names
        for port in claims.won(("default", name), rows(name)).values()
        if SHARED in port.frontends
    ]


@pytest.mark.parametrize("order", list(permutations("abc")), ids="".join)
def test_the_first_by_name_wins_in_any_order_of_events(order: tuple[str, ...]) -> None:
    claims = Claims()
    for name in order:
        claims.update(("default", name), rows(name))
    assert winners(claims, *order) == ["a"]
    assert claims.lost() == {SHARED: (("default", "a"), (("default", "b"), ("default", "c")))}


def test_the_next_takes_over_when_the_winner_leaves() -> None:
    claims = Claims()
    for name in "abc":
        claims.update(("default", name), rows(name))
    assert claims.update(("default", "a"), {}) == {("default", "b")}
    assert winners(claims, "b", "c") == ["b"]
    assert claims.update(("default", "b"), rows("b", claims=False)) == {("default", "c")}
    assert claims.lost() == {}


def test_a_newcomer_displaces_one_who_sorts_after_it() -> None:
    claims = Claims()
    assert claims.update(("default", "b"), rows("b")) == set()
    assert claims.update(("default", "a"), rows("a")) == {("default", "b")}
    assert winners(claims, "a", "b") == ["a"]


def test_who_waits_and_leaves_changes_nothing_for_others() -> None:
    claims = Claims()
    for name in "ab":
        claims.update(("default", name), rows(name))
    assert claims.update(("default", "b"), {}) == set()
    assert claims.lost() == {}


def test_a_loser_keeps_its_other_frontends() -> None:
    claims = Claims()
    for name in "ab":
        claims.update(("default", name), rows(name))
    (left,) = claims.won(("default", "b"), rows("b")).values()
    assert list(left.frontends) == [frontend(f"10.96.0.{ord('b')} 80")]
