"""However the events of a recorded cluster reach an agent, it ends with the same rows.

A watch of each kind of object goes its own way, falls behind, breaks off and resumes from where it
was, so that some events come twice, or is replaced by a list that skips what happened meanwhile.
What stays true is the order of one object's events.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import cache
from random import Random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bpfsvc.books import Books
from bpfsvc.model import ModelObject, ObjectKey
from bpfsvc.sources import Batch
from tests.rows.kernel import Kernel, new_books
from tests.rows.test_recordings import listed, read_event, watched

Event = tuple[bool, ModelObject]
"""Whether the object is there afterwards, and the object."""


@cache
def recorded() -> dict[str, list[Event]]:
    """Give the events of each kind in their order."""
    found: dict[str, list[Event]] = {}
    for one in listed():
        found.setdefault(one.key.kind, []).append((True, one))
    for line in watched():
        for one in read_event(line["event"]):
            found[one.key.kind].append((line["event"]["type"] != "DELETED", one))
    return found


def state(events: Iterable[Event]) -> dict[ObjectKey, ModelObject]:
    """Give the objects that are there after some events."""
    there: dict[ObjectKey, ModelObject] = {}
    for stays, one in events:
        there.pop(one.key, None)
        if stays:
            there[one.key] = one
    return there


class Agent:
    """Books, a kernel that checks every write, and how far each kind has come."""

    def __init__(self) -> None:
        self.books: Books = new_books("n1")
        self._kernel = Kernel()
        self._random = Random(1)
        self._position = dict.fromkeys(recorded(), 0)

    def watch(self, kind: str, count: int) -> None:
        """Take the next events of a kind, one by one."""
        at = self._position[kind]
        self._tell(recorded()[kind][at : at + count])
        self._position[kind] = min(at + count, len(recorded()[kind]))

    def again(self, kind: str, count: int) -> None:
        """Take the last events of a kind once more."""
        at = self._position[kind]
        self._tell(recorded()[kind][max(0, at - count) : at])

    def relist(self, kind: str, skipped: int) -> None:
        """Take a list from ``skipped`` events later."""
        at = min(self._position[kind] + skipped, len(recorded()[kind]))
        self._position[kind] = at
        there = state(recorded()[kind][:at])
        names = frozenset((key.namespace, key.name) for key in there)
        self._apply(
            Batch(tuple(there.values()), (), complete=True, problems=(), whole={kind: names})
        )

    def rows(self) -> dict[Any, Any]:
        """Give the rows, but for ids that depend on what came first."""
        return {
            one.port: (one.number, one.backends(), one.frontends(), one.ranges)
            for one in self.books.ledger
        }

    def _tell(self, events: Iterable[Event]) -> None:
        for stays, one in events:
            puts, gone = ((one,), ()) if stays else ((), (one.key,))
            self._apply(Batch(puts, gone, complete=True, problems=()))

    def _apply(self, batch: Batch) -> None:
        touched = self.books.cluster.apply(batch.puts, batch.gone, batch.whole)
        self._kernel.sync(self.books.plans(touched), self._random)


@cache
def all_in_order() -> tuple[dict[Any, Any], dict[Any, Any]]:
    """Give the rows halfway and at the end of a run without any trouble."""
    agent = Agent()
    for kind, events in recorded().items():
        agent.watch(kind, len(events) // 2)
    halfway = agent.rows()
    for kind, events in recorded().items():
        agent.watch(kind, len(events))
    return halfway, agent.rows()


kinds = st.sampled_from(["Service", "EndpointSlice", "Node"])
ways = st.sampled_from(["watch", "watch", "again", "relist"])


@pytest.mark.slow
@settings(deadline=None)
@given(st.lists(st.tuples(ways, kinds, st.integers(0, 25)), max_size=25))
def test_any_way_of_the_same_events_ends_in_the_same_rows(
    course: list[tuple[str, str, int]],
) -> None:
    """Each single write on the way is safe as well, which the kernel of the test checks."""
    agent = Agent()
    for way, kind, count in course:
        getattr(agent, way)(kind, count)
    for kind, events in recorded().items():
        agent.watch(kind, len(events))
    assert agent.rows() == all_in_order()[1]


def test_a_list_alone_ends_in_the_rows_of_all_events() -> None:
    """And so does one after half of the events, whatever went meanwhile."""
    for first in (0, 10, 40):
        agent = Agent()
        for kind, events in recorded().items():
            agent.watch(kind, first)
            agent.relist(kind, len(events))
        assert agent.rows() == all_in_order()[1]
    assert all_in_order()[0] != all_in_order()[1]
