"""However the events of a recorded cluster reach an agent, it ends with the same entries.

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

from bpfsvc.kube.source import Batch
from bpfsvc.model import ModelObject, ObjectKey
from bpfsvc.services.planner import Planner
from tests.services.kernel import Kernel, new_planner
from tests.services.test_recordings import listed, read_event, watched

Event = tuple[bool, ModelObject]
"""True if the object exists after the event, and the object."""


@cache
def recorded() -> dict[str, list[Event]]:
    """Return the events of each kind in their order."""
    found: dict[str, list[Event]] = {}
    for one in listed():
        found.setdefault(one.key.kind, []).append((True, one))
    for line in watched():
        for one in read_event(line["event"]):
            found[one.key.kind].append((line["event"]["type"] != "DELETED", one))
    return found


def state(events: Iterable[Event]) -> dict[ObjectKey, ModelObject]:
    """Return the objects that are there after some events."""
    there: dict[ObjectKey, ModelObject] = {}
    for stays, one in events:
        there.pop(one.key, None)
        if stays:
            there[one.key] = one
    return there


class Agent:
    """A planner, a kernel that checks every write, and the position in the events of each kind."""

    def __init__(self) -> None:
        self.planner: Planner = new_planner("n1")
        self._kernel = Kernel()
        self._random = Random(1)
        self._position = dict.fromkeys(recorded(), 0)

    def watch(self, kind: str, count: int) -> None:
        """Take the next events of a kind, one by one."""
        position = self._position[kind]
        self._send(recorded()[kind][position : position + count])
        self._position[kind] = min(position + count, len(recorded()[kind]))

    def again(self, kind: str, count: int) -> None:
        """Take the last events of a kind once more."""
        position = self._position[kind]
        self._send(recorded()[kind][max(0, position - count) : position])

    def relist(self, kind: str, skipped: int) -> None:
        """Take a list from ``skipped`` events later."""
        position = min(self._position[kind] + skipped, len(recorded()[kind]))
        self._position[kind] = position
        there = state(recorded()[kind][:position])
        names = frozenset((key.namespace, key.name) for key in there)
        self._apply(
            Batch(tuple(there.values()), (), complete=True, problems=(), listed={kind: names})
        )

    def entries(self) -> dict[Any, Any]:
        """Return the entries without the ids that depend on the order of events."""
        return {
            one.port: (one.number, one.backends(), one.frontends(), one.ranges)
            for one in self.planner.applied_state
        }

    def _send(self, events: Iterable[Event]) -> None:
        for stays, one in events:
            puts, gone = ((one,), ()) if stays else ((), (one.key,))
            self._apply(Batch(puts, gone, complete=True, problems=()))

    def _apply(self, batch: Batch) -> None:
        touched = self.planner.cache.apply(batch.puts, batch.gone, batch.listed)
        self._kernel.sync(self.planner, touched, self._random)


@cache
def all_in_order() -> tuple[dict[Any, Any], dict[Any, Any]]:
    """Return the entries halfway and at the end of a run without any trouble."""
    agent = Agent()
    for kind, events in recorded().items():
        agent.watch(kind, len(events) // 2)
    halfway = agent.entries()
    for kind, events in recorded().items():
        agent.watch(kind, len(events))
    return halfway, agent.entries()


kinds = st.sampled_from(["Service", "EndpointSlice", "Node"])
ways = st.sampled_from(["watch", "watch", "again", "relist"])


@pytest.mark.slow
@settings(deadline=None)
@given(st.lists(st.tuples(ways, kinds, st.integers(0, 25)), max_size=25))
def test_any_order_of_the_same_events_ends_with_the_same_entries(
    course: list[tuple[str, str, int]],
) -> None:
    """Each single write is safe, too; the kernel of the test checks that."""
    agent = Agent()
    for way, kind, count in course:
        getattr(agent, way)(kind, count)
    for kind, events in recorded().items():
        agent.watch(kind, len(events))
    assert agent.entries() == all_in_order()[1]


def test_a_list_alone_ends_with_the_entries_of_all_events() -> None:
    """So does a list after half of the events, even if objects were deleted meanwhile."""
    for first in (0, 10, 40):
        agent = Agent()
        for kind, events in recorded().items():
            agent.watch(kind, first)
            agent.relist(kind, len(events))
        assert agent.entries() == all_in_order()[1]
    assert all_in_order()[0] != all_in_order()[1]
