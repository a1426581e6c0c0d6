"""The order of rounds favours no mode."""

from __future__ import annotations

from collections import Counter
from itertools import chain, pairwise, permutations

import pytest

from bpfsvc.devtools.bench.suites.rounds import Order

_ROUNDS = 21  # turns of each mode in a task by default


def _turns(count: int, task: object, rounds: int = _ROUNDS) -> list[int]:
    order = Order(range(count), task)
    return [*chain.from_iterable(order.next() for _ in range(rounds))]


@pytest.mark.parametrize("count", [2, 3, 8])
def test_each_has_a_turn_and_none_two_in_a_row(count: int) -> None:
    order = Order(range(count), "pods")
    turns = [order.next() for _ in range(50)]
    assert all(sorted(turn) == list(range(count)) for turn in turns)
    assert all(turn != other for turn, other in pairwise(chain.from_iterable(turns)))


@pytest.mark.parametrize("count", [3, 4, 7])
@pytest.mark.parametrize("task", range(4))
def test_each_follows_each_other_as_often_as_the_rest(count: int, task: int) -> None:
    """By the turns of one task, and not only after thousands."""
    followed = Counter(pairwise(_turns(count, task)))
    times = [followed[pair] for pair in permutations(range(count), 2)]
    assert max(times) - min(times) <= 2
    assert min(times) > 0


def test_the_order_is_the_tasks_own_and_the_same_in_every_run() -> None:
    """Over all tasks, none is early or late in a round."""
    tasks = [(1, "pods", "connect", number) for number in range(200)]
    assert _turns(7, tasks[0]) == _turns(7, (1, "pods", "connect", 0))
    orders = {tuple(_turns(7, task, 1)) for task in tasks}
    assert len(orders) > 190
    places = [sum(order.index(mode) for order in orders) / len(orders) for mode in range(7)]
    assert all(2.5 < index < 3.5 for index in places)


def test_a_single_mode_is_always_next_and_no_modes_have_no_order() -> None:
    alone: Order[str] = Order("a", "pods")
    assert [alone.next() for _ in range(3)] == [["a"]] * 3
    assert Order([], "pods").next() == []
