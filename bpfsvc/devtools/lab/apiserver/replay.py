"""A recorded cluster, event by event, as a real API server sent it.

A recording is a directory of ``RESOURCE.list.json`` (the state at first), ``RESOURCE.watch.jsonl``
(a first line about the request, then ``{"t": SECONDS, "event": {...}}``) and ``steps.jsonl``
(``{"t": SECONDS, "step": NAME}``: what was done to the cluster). Objects keep their uid and
resourceVersion. The recorded watches had kube-proxy's selectors, so objects that these do not
select are missing; a client with the same selectors gets exactly the same events.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

from bpfsvc.devtools.lab.apiserver.store import Store

_EARLY = 0.1  # seconds by which a step may be recorded after its first event


class Recorded(NamedTuple):
    """One event of a watch: ADDED, MODIFIED or DELETED, and the object."""

    moment: float
    kind: str
    object: dict[str, Any]

    @property
    def version(self) -> int:
        """Its resourceVersion."""
        return int(self.object["metadata"]["resourceVersion"])


class Step(NamedTuple):
    """A change to the recorded cluster, and the events that it caused."""

    name: str
    events: tuple[Recorded, ...]


def lists(directory: Path) -> Iterator[dict[str, Any]]:
    """Return the recorded lists, as they were answered."""
    for file in sorted(directory.glob("*.list.json")):
        yield json.loads(file.read_text())


def events(directory: Path) -> list[Recorded]:
    """Return the events of all watches in the order of time, without bookmarks."""
    lines = [
        json.loads(line)
        for file in directory.glob("*.watch.jsonl")
        for line in file.read_text().splitlines()
    ]
    recorded = [
        Recorded(float(line["t"]), line["event"]["type"], line["event"]["object"])
        for line in lines
        if line.get("event", {}).get("type") not in (None, "BOOKMARK", "ERROR")
    ]
    return sorted(recorded, key=lambda event: (event.moment, event.version))


def steps(directory: Path) -> Iterator[Step]:
    """Return the steps with their events, in order."""
    text = (directory / "steps.jsonl").read_text()
    noted = [(line["step"], float(line["t"])) for line in map(json.loads, text.splitlines())]
    left = events(directory)
    for (name, _), (_, following) in pairwise([*noted, ("", float("inf"))]):
        count = sum(event.moment < following - _EARLY for event in left)
        yield Step(name, tuple(left[:count]))
        del left[:count]


def apply(store: Store, event: Recorded) -> None:
    """Apply an event to the store, at its recorded resourceVersion.

    If the store has a later version already, because other objects were put, use the next version.
    """
    version = max(event.version, store.version + 1)
    if event.kind == "DELETED":
        metadata = event.object["metadata"]
        namespace = metadata.get("namespace", "")
        store.delete(event.object["kind"], namespace, metadata["name"], version)
    else:
        store.put(event.object, version)


def replay(store: Store, directory: Path) -> Iterator[Step]:
    """Load the lists (at the first step), and yield each step after its events are applied."""
    for body in lists(directory):
        store.load(body)
    for step in steps(directory):
        for event in step.events:
            apply(store, event)
        yield step
