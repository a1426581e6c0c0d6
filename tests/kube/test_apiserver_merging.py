"""Any order of changes, cuts, repetitions and lists adds up to what is there."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from bpfsvc.devtools.lab.objects import endpoints
from bpfsvc.kube import decoding
from bpfsvc.kube.deltas import Identity, Update, batch_of
from bpfsvc.kube.object_tracker import ObjectTracker
from bpfsvc.kube.resources import ENDPOINTS, SERVICES, Resource
from bpfsvc.kube.source import Batch
from bpfsvc.model import ModelObject, read_object
from tests.kube.following import ObjectMap, applied, endpoint_slice, service

NAMES = ("a", "b", "c")
VALUES = ("10.0.0.1", "10.0.0.2", "10.0.0.3")
Objects = dict[str, Any]

BROKEN = "broken"


def written(kind: str, name: str, value: str) -> Any:
    """Write an object with a value; ``broken`` for one that cannot be read."""
    if value == BROKEN:
        field = {"Service": "spec", "Endpoints": "subsets", "EndpointSlice": "endpoints"}[kind]
        return written(kind, name, VALUES[0]) | {field: 5, BROKEN: True}
    if kind == "Service":
        return service(name, clusterIP=value)
    if kind == "Endpoints":
        return endpoints(name, *((address,) for address in VALUES[: VALUES.index(value)]))
    return endpoint_slice(name, value)


class Server:
    """Objects of one resource, their history, and one client that follows with interruptions."""

    def __init__(self, resource: Resource, kind: str) -> None:
        self._kind = kind
        self._objects: Objects = {}
        self._history: list[tuple[str, Any]] = []
        self._seen = 0
        variant = next(offered for offered in resource.variants if offered.kind == kind)
        self._others = [offered for offered in resource.kinds if offered != kind]
        self._tracker = ObjectTracker(resource.name, variant)
        self.last_good: dict[str, tuple[ModelObject, ...]] = {}

    def put(self, name: str, value: str) -> None:
        raw = written(self._kind, name, value)
        self._history.append(("MODIFIED" if name in self._objects else "ADDED", raw))
        self._objects[name] = raw

    def delete(self, name: str) -> None:
        if name in self._objects:
            self._history.append(("DELETED", self._objects.pop(name)))

    def watch(self, again: int, length: int) -> Update | None:
        """Send what happened since, some of it a second time, and not all of it."""
        first = max(0, self._seen - again)
        sent = self._history[first : max(first + length, self._seen)]
        self._seen = max(self._seen, first + len(sent))
        lines = [json.dumps({"type": kind, "object": raw}).encode() for kind, raw in sent]
        return self._tracker.change([decoding.event(line) for line in lines], 0.0)

    def list(self) -> Update:
        """Send all objects."""
        self._seen = len(self._history)
        return self._tracker.replace(self._items(), self._others)

    def _items(self) -> Iterator[tuple[Identity, bytes]]:
        for raw in self._objects.values():
            text = json.dumps(raw).encode()
            yield decoding.identity(text), text

    def readable(self) -> ObjectMap:
        """Return the objects that can be read now."""
        readable: ObjectMap = {}
        for raw in self._objects.values():
            if BROKEN not in raw:
                readable |= {item.key: item for item in read_object(raw)}
        return readable

    def broken(self) -> set[str]:
        """Return the names of objects that cannot be read."""
        return {name for name, raw in self._objects.items() if BROKEN in raw}


steps = st.lists(
    st.one_of(
        st.tuples(st.just("put"), st.sampled_from(NAMES), st.sampled_from((*VALUES, BROKEN))),
        st.tuples(st.just("delete"), st.sampled_from(NAMES)),
        st.tuples(st.just("watch"), st.integers(0, 4), st.integers(0, 9)),
        st.tuples(st.just("list")),
        st.tuples(st.just("batch")),
    ),
    max_size=40,
)
KINDS = {"Service": SERVICES, "EndpointSlice": ENDPOINTS, "Endpoints": ENDPOINTS}


@settings(max_examples=300, deadline=None)
@given(st.sampled_from(sorted(KINDS)), steps)
def test_any_order_ends_in_the_same_objects(kind: str, done: list[tuple[Any, ...]]) -> None:
    """Batches of watches cut and resumed anywhere end in the objects that exist."""
    server = Server(KINDS[kind], kind)
    objects: ObjectMap = {}
    pending: list[Update] = []
    problems: tuple[Any, ...] = ()
    batches: list[Batch] = []

    def take(update: Update | None) -> None:
        nonlocal problems
        if update is not None:
            pending.append(update)
            problems = problems if update.problems is None else update.problems

    take(server.list())
    for step in (*done, ("watch", 0, 10**6), ("batch",)):
        match step:
            case ("put", name, value):
                server.put(name, value)
            case ("delete", name):
                server.delete(name)
            case ("watch", again, length):
                take(server.watch(again, length))
            case ("list",):
                take(server.list())
            case ("batch",):
                batches.append(batch_of(pending, problems))
                objects = applied(objects, batches[-1])
                pending.clear()
    readable, broken = server.readable(), server.broken()
    reported = {problem.key.name.split("-")[0] for problem in batches[-1].problems if problem.key}
    assert reported == broken
    owners = {key: key.name.split("-")[0] for key in objects}
    # Objects that cannot be read keep what they had; all others are exactly what is there.
    assert {key: item for key, item in objects.items() if owners[key] not in broken} == readable
    assert all(owner in server._objects for owner in owners.values())
