"""The order of turns: by chance, the same in every run, and nobody twice in a row.

In a fixed order somebody would always come after the same neighbour, and whoever ends one turn and
begins the next would find its own caches warm.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Generic, TypeVar

_T = TypeVar("_T")


class Order(Generic[_T]):
    """Gives the same things in ever other orders."""

    def __init__(self, things: Sequence[_T]) -> None:
        self._things = [*things]
        self._chance = random.Random(1)

    def next(self) -> list[_T]:
        """Give an order that does not begin with whom the last one ended with."""
        last = self._things[-1:]
        self._chance.shuffle(self._things)
        if len(self._things) > 1 and self._things[:1] == last:
            self._things.append(self._things.pop(0))
        return [*self._things]
