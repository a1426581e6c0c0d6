"""Any order of changes, cuts, repetitions and lists adds up to what is there."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from bpfsvc.apiserver import decoding
from bpfsvc.apiserver.objects import Books
from bpfsvc.apiserver.resources import ENDPOINTS, SERVICES, Resource
from bpfsvc.apiserver.updates import Gathering, Identity, Update
from bpfsvc.model import ModelObject, read_object
from bpfsvc.sources import Batch
from tests.api.following import Picture, applied, endpoint_slice, endpoints, service

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
        return endpoints(name, *((each,) for each in VALUES[: VALUES.index(value)]))
    return endpoint_slice(name, value)


class Server:
    """Objects of one resource, their history, and one client that follows with interruptions."""

    def __init__(self, resource: Resource, kind: str) -> None:
        self._kind = kind
        self._objects: Objects = {}
        self._history: list[tuple[str, Any]] = []
        self._seen = 0
        variant = next(each for each in resource.variants if each.kind == kind)
        self._others = [each for each in resource.kinds if each != kind]
        self._books = Books(resource.name, variant)
        self.last_good: dict[str, tuple[ModelObject, ...]] = {}

    def put(self, name: str, value: str) -> None:
        raw = written(self._kind, name, value)
        self._history.append(("MODIFIED" if name in self._objects else "ADDED", raw))
        self._objects[name] = raw

    def delete(self, name: str) -> None:
        if name in self._objects:
            self._history.append(("DELETED", self._objects.pop(name)))

    def watch(self, again: int, length: int) -> Update | None:
        """Tell what happened since, some of it a second time, and not all of it."""
        first = max(0, self._seen - again)
        told = self._history[first : max(first + length, self._seen)]
        self._seen = max(self._seen, first + len(told))
        lines = [json.dumps({"type": kind, "object": raw}).encode() for kind, raw in told]
        return self._books.change([decoding.event(line) for line in lines], 0.0)

    def list(self) -> Update:
        """Tell all that is there."""
        self._seen = len(self._history)
        return self._books.replace(self._items(), self._others)

    def _items(self) -> Iterator[tuple[Identity, bytes]]:
        for raw in self._objects.values():
            text = json.dumps(raw).encode()
            yield decoding.identity(text), text

    def readable(self) -> Picture:
        """Give what is there, of objects that can be read now."""
        found: Picture = {}
        for raw in self._objects.values():
            if BROKEN not in raw:
                found |= {each.key: each for each in read_object(raw)}
        return found

    def broken(self) -> set[str]:
        """Give the names of objects that cannot be read."""
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
def test_any_order_ends_in_the_same_picture(kind: str, done: list[tuple[Any, ...]]) -> None:
    """Batches made at any moments, of watches cut and taken up anywhere, end in what is there."""
    server = Server(KINDS[kind], kind)
    picture: Picture = {}
    gathering = Gathering()
    problems: tuple[Any, ...] = ()
    batches: list[Batch] = []

    def take(update: Update | None) -> None:
        nonlocal problems
        if update is not None:
            gathering.add(update)
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
                batches.append(gathering.batch(problems))
                picture = applied(picture, batches[-1])
                gathering = Gathering()
    readable, broken = server.readable(), server.broken()
    told = {each.key.name.split("-")[0] for each in batches[-1].problems if each.key}
    assert told == broken
    owners = {key: key.name.split("-")[0] for key in picture}
    # Objects that cannot be read keep what they had; all others are exactly what is there.
    assert {key: one for key, one in picture.items() if owners[key] not in broken} == readable
    assert all(owner in server._objects for owner in owners.values())
