"""The order of turns favours nobody."""

from __future__ import annotations

from collections import Counter
from itertools import pairwise

import pytest

from bpfsvc.bench.suites.order import Order


@pytest.mark.parametrize("count", [2, 3, 8])
def test_everybody_has_a_turn_and_nobody_two_in_a_row(count: int) -> None:
    order = Order(range(count))
    turns = [order.next() for _ in range(50)]
    assert all(sorted(turn) == list(range(count)) for turn in turns)
    assert all(one != other for one, other in pairwise(each for turn in turns for each in turn))


def test_everybody_comes_after_everybody() -> None:
    order = Order(range(4))
    pairs = Counter(pairwise(each for _ in range(300) for each in order.next()))
    assert len(pairs) == 12
    assert max(pairs.values()) < 3 * min(pairs.values())


def test_it_is_the_same_in_every_run_and_one_alone_is_always_next() -> None:
    one, other = Order("abcde"), Order("abcde")
    assert [one.next() for _ in range(5)] == [other.next() for _ in range(5)]
    assert Order("a").next() == ["a"]
