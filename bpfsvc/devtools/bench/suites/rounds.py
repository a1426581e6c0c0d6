"""Rounds of turns: the order is random, but each mode follows each other mode equally often.

In a fixed order a mode would always come after the same one, and one that ends a round and begins
the next would find its own caches warm. Random order alone does not help where turns are few: in 21
orders of seven, one may follow another nine times and a third never.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterable, Sequence
from itertools import pairwise
from typing import Generic, TypeVar

_T = TypeVar("_T")

_DRAFTS = 10  # the most even draft is taken; more drafts make no difference


class Order(Generic[_T]):
    """Returns the same things in ever new orders; none comes twice in a row.

    ``task``: the task of the turns, as text. It decides the orders: they are the same in every run,
    and different for every task.
    """

    def __init__(self, things: Sequence[_T], task: object) -> None:
        self._things = [*things]
        self._random = random.Random(str(task))
        self._followed: Counter[tuple[int, int]] = Counter()
        """How often one was followed by another; by their places among the things."""
        self._last = -1

    def next(self) -> list[_T]:
        """Return an order that does not begin with the last thing of the order before."""
        chosen = min((self._draft() for _ in range(_DRAFTS)), key=self._repeated)
        self._followed.update(self._pairs(chosen))
        self._last = chosen[-1] if chosen else -1
        return [self._things[index] for index in chosen]

    def _draft(self) -> list[int]:
        """Return a random order: each thing is followed by the thing that followed it least."""
        left = list(range(len(self._things)))
        self._random.shuffle(left)
        drafted: list[int] = []
        last = self._last
        while left:
            others = [index for index in left if index != last] or left  # a single thing
            last = min(others, key=lambda index: self._followed[last, index])
            left.remove(last)
            drafted.append(last)
        return drafted

    def _repeated(self, order: Sequence[int]) -> int:
        return sum(self._followed[pair] for pair in self._pairs(order))

    def _pairs(self, order: Iterable[int]) -> Iterable[tuple[int, int]]:
        return pairwise([self._last, *order])
