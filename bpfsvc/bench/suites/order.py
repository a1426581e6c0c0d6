"""The order of turns: by chance, but so that everybody comes after everybody else equally often.

In a fixed order somebody would always come after the same neighbour, and whoever ends one turn and
begins the next would find its own caches warm. Chance alone does not help where turns are few: of
seven in 21 orders, one may come after another nine times and after a third never.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterable, Sequence
from itertools import pairwise
from typing import Generic, TypeVar

_T = TypeVar("_T")

_DRAFTS = 10  # of which the most even is taken; more change nothing that counts


class Order(Generic[_T]):
    """Gives the same things in ever other orders; nobody comes twice in a row.

    ``task``: what the turns are of, as text. It decides the orders: they are the same in every run,
    and others for every task.
    """

    def __init__(self, things: Sequence[_T], task: object) -> None:
        self._things = [*things]
        self._chance = random.Random(str(task))
        self._followed: Counter[tuple[int, int]] = Counter()
        """How often the one was followed by the other; by their places among the things."""
        self._last = -1

    def next(self) -> list[_T]:
        """Give an order that does not begin with whom the last one ended with."""
        chosen = min((self._draft() for _ in range(_DRAFTS)), key=self._repeated)
        self._followed.update(self._pairs(chosen))
        self._last = chosen[-1] if chosen else -1
        return [self._things[place] for place in chosen]

    def _draft(self) -> list[int]:
        """Let each be followed by whom it was followed by least, by chance among those."""
        left = list(range(len(self._things)))
        self._chance.shuffle(left)
        drafted: list[int] = []
        last = self._last
        while left:
            others = [place for place in left if place != last] or left  # one alone
            last = min(others, key=lambda place: self._followed[last, place])
            left.remove(last)
            drafted.append(last)
        return drafted

    def _repeated(self, order: Sequence[int]) -> int:
        return sum(self._followed[pair] for pair in self._pairs(order))

    def _pairs(self, order: Iterable[int]) -> Iterable[tuple[int, int]]:
        return pairwise([self._last, *order])
