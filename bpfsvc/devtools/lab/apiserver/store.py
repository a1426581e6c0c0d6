"""The objects, one revision for all of them as in etcd, and the history of changes.

An object is encoded once, when it is put; lists and watches send those bytes. The bytes of a list
item are kept: ``kind`` and ``apiVersion`` are not repeated in items, and stand before the rest in
watch events and single objects (as recorded).

History is kept for each resource up to a length, or until ``compact``. The state of an earlier
revision is the present state with the later changes undone, so no snapshots are needed.
"""

from __future__ import annotations

import threading
import uuid
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import Any, Literal

import msgspec

from bpfsvc.devtools.lab.apiserver import resources, status
from bpfsvc.devtools.lab.apiserver.resources import ENDPOINT_SLICES, Key, Resource

Kind = Literal["ADDED", "MODIFIED", "DELETED"]

_FIRST = ("name", "generateName", "namespace", "uid", "resourceVersion", "generation")

encode = msgspec.json.encode
decode = msgspec.json.decode


@dataclass(frozen=True, slots=True)
class Record:
    """One object at one revision; ``item`` is its JSON as an item of a list.

    ``bare`` is the same without ``managedFields``.
    """

    resource: Resource
    key: Key
    version: int
    item: bytes
    bare: bytes
    labels: Mapping[str, str]
    fields: Mapping[str, str]
    uid: str
    created: str
    generation: int

    def text(self, *, bare: bool = False) -> bytes:
        """Return its JSON as an item of a list."""
        return self.bare if bare else self.item

    def single(self, *, bare: bool = False) -> bytes:
        """Return its JSON as a single object and in events."""
        return _head(self.resource) + self.text(bare=bare)[1:]

    def raw(self) -> dict[str, Any]:
        """Return the object, decoded."""
        value: dict[str, Any] = decode(self.single())
        return value

    def later(self, version: int) -> Record:
        """Return the same object at a later revision, as DELETED events carry it."""
        return replace(
            self,
            version=version,
            item=_with_version(self.item, version),
            bare=_with_version(self.bare, version),
        )


@dataclass(slots=True)
class Change:
    """From ``before`` to ``after`` at a revision; None: the object does not exist."""

    resource: Resource
    version: int
    before: Record | None
    after: Record | None
    _lines: dict[tuple[Kind, bool], bytes] = field(default_factory=dict)

    def kind(self, selects: Callable[[Record], bool]) -> Kind | None:
        """Return the event type for a watch with a selector: DELETED if it no longer matches."""
        was = self.before is not None and selects(self.before)
        remains = self.after is not None and selects(self.after)
        if was:
            return "MODIFIED" if remains else "DELETED"
        return "ADDED" if remains else None

    def chunk(self, kind: Kind, *, bare: bool = False) -> bytes:
        """Return its event as a line in an HTTP chunk, encoded once for all watches."""
        if (kind, bare) not in self._lines:
            record = self.after
            if kind == "DELETED":
                # The last object that matched, at the revision of the change (recorded).
                assert self.before is not None
                record = self.before.later(self.version)
            assert record is not None
            self._lines[kind, bare] = event_chunk(kind, record.single(bare=bare))
        return self._lines[kind, bare]


def event_chunk(kind: str, body: bytes) -> bytes:
    """Return a line of a watch, ready to be sent as a chunk."""
    return as_chunk(b'{"type":"%s","object":%s}\n' % (kind.encode(), body))


def as_chunk(data: bytes) -> bytes:
    """Frame bytes as a chunk of an HTTP body."""
    return b"%x\r\n%s\r\n" % (len(data), data)


def _with_version(item: bytes, version: int) -> bytes:
    raw = decode(item)
    raw["metadata"]["resourceVersion"] = str(version)
    return encode(raw)


def _head(resource: Resource) -> bytes:
    return b'{"kind":"%s","apiVersion":"%s",' % (
        resource.kind.encode(),
        resource.api_version.encode(),
    )


@dataclass(slots=True)
class _Collection:
    """The objects of one resource."""

    history: deque[Change]
    objects: dict[Key, Record] = field(default_factory=dict)
    listeners: list[Callable[[Change], None]] = field(default_factory=list)
    floor: int = 0  # history is complete after this revision
    order: list[Record] | None = None  # the objects in the order of their keys


class Store:
    """All objects. Every method may be called by any thread."""

    def __init__(self, history: int = 20_000, version: int = 1) -> None:
        self.lock = threading.RLock()
        self.version = version
        self._collections = {
            resource: _Collection(deque(maxlen=history), floor=version)
            for resource in resources.RESOURCES
        }

    @property
    def resource_version(self) -> str:
        """The present revision as text, as the API has it."""
        return str(self.version)

    # -- writing ------------------------------------------------------------------------------

    def put(self, raw: Mapping[str, Any], version: int | None = None) -> Record:
        """Create or replace an object at the next revision, or at ``version`` (of a recording).

        Fields missing in ``metadata`` are kept or made: uid, creationTimestamp, generation.
        ``KeyError`` for objects of unknown resources.
        """
        resource = resources.of_object(dict(raw))
        with self.lock:
            self.version = version or self.version + 1
            record = self._record(resource, raw, self.version)
            collection = self._collections[resource]
            before = collection.objects.get(record.key)
            collection.objects[record.key] = record
            self._happened(collection, Change(resource, self.version, before, record))
            return record

    def delete(self, kind: str, namespace: str, name: str, version: int | None = None) -> None:
        """Delete an object of a kind or plural; ``KeyError`` if there is none."""
        resource = resources.named(kind)
        collection = self._collections[resource]
        with self.lock:
            before = collection.objects.pop((namespace, name))
            self.version = version or self.version + 1
            self._happened(collection, Change(resource, self.version, before, None))

    def load(self, body: Mapping[str, Any]) -> None:
        """Make a recorded list the present state, without events."""
        plain = {"apiVersion": body["apiVersion"], "kind": body["kind"].removesuffix("List")}
        resource = resources.of_object(plain)
        with self.lock:
            collection = self._collections[resource]
            for item in body["items"]:
                record = self._record(resource, item, int(item["metadata"]["resourceVersion"]))
                collection.objects[record.key] = record
            self.version = max(self.version, int(body["metadata"]["resourceVersion"]))
            collection.order = None
        self.compact()

    def compact(self) -> None:
        """Delete all history: watches and pages of earlier revisions get 410."""
        with self.lock:
            for collection in self._collections.values():
                collection.history.clear()
                collection.floor = self.version

    def clear(self) -> None:
        """Delete every object, without events, and delete all history."""
        with self.lock:
            for collection in self._collections.values():
                collection.objects.clear()
                collection.order = None
        self.compact()

    def _record(self, resource: Resource, raw: Mapping[str, Any], version: int) -> Record:
        given = raw["metadata"]
        namespace = given.get("namespace", "default") if resource.namespaced else ""
        key = (namespace, given["name"])
        before = self._collections[resource].objects.get(key)
        metadata = {name: given[name] for name in _FIRST if name in given}
        if namespace:
            metadata["namespace"] = namespace
        metadata["uid"] = given.get("uid") or (before.uid if before else str(uuid.uuid4()))
        metadata["resourceVersion"] = str(version)
        generation = given.get("generation", 0)
        if resource is ENDPOINT_SLICES and not generation:
            generation = before.generation + 1 if before else 1
        if generation:
            metadata["generation"] = generation
        created = given.get("creationTimestamp") or (before.created if before else timestamp())
        metadata["creationTimestamp"] = created
        metadata |= {name: value for name, value in given.items() if name not in metadata}
        rest = {
            name: value
            for name, value in raw.items()
            if name not in ("kind", "apiVersion", "metadata")
        }
        item = encode({"metadata": metadata} | rest)
        bare = {name: value for name, value in metadata.items() if name != "managedFields"}
        return Record(
            resource,
            key,
            version,
            item,
            encode({"metadata": bare} | rest) if len(bare) < len(metadata) else item,
            metadata.get("labels") or {},
            {path: _found({"metadata": metadata} | rest, path) for path in resource.fields},
            metadata["uid"],
            created,
            generation,
        )

    def _happened(self, collection: _Collection, change: Change) -> None:
        if len(collection.history) == collection.history.maxlen:
            collection.floor = collection.history[0].version
        collection.history.append(change)
        collection.order = None
        for listener in collection.listeners:
            listener(change)

    # -- reading ------------------------------------------------------------------------------

    def get(self, kind: str, namespace: str, name: str) -> Record | None:
        """Return an object of a kind or plural, or None."""
        return self._collections[resources.named(kind)].objects.get((namespace, name))

    def all(self, kind: str) -> list[Record]:
        """Return the objects of a kind or plural in the order of their keys."""
        with self.lock:
            return self._ordered(self._collections[resources.named(kind)])

    def at(self, resource: Resource, version: int) -> list[Record]:
        """Return the objects as they were at a revision; ``Refusal`` (410) if it is deleted."""
        with self.lock:
            collection = self._collections[resource]
            if version < collection.floor:
                raise status.list_too_old()
            if not collection.history or collection.history[-1].version <= version:
                return self._ordered(collection)
            objects = dict(collection.objects)
            for change in reversed(collection.history):
                if change.version <= version:
                    break
                known = change.before or change.after
                assert known is not None
                if change.before is None:
                    del objects[known.key]
                else:
                    objects[known.key] = change.before
            return sorted(objects.values(), key=lambda record: record.key)

    def since(self, resource: Resource, version: int) -> list[Change]:
        """Return the changes after a revision; ``Refusal`` (410) if it is deleted."""
        with self.lock:
            collection = self._collections[resource]
            if version < collection.floor:
                raise status.too_old(version, collection.floor)
            later: list[Change] = []
            for change in reversed(collection.history):
                if change.version <= version:
                    break
                later.append(change)
            return later[::-1]

    def listen(self, resource: Resource, listener: Callable[[Change], None]) -> None:
        """Call ``listener`` with each later change, under the lock."""
        with self.lock:
            self._collections[resource].listeners.append(listener)

    def unlisten(self, resource: Resource, listener: Callable[[Change], None]) -> None:
        """Stop calling ``listener``."""
        with self.lock:
            self._collections[resource].listeners.remove(listener)

    def _ordered(self, collection: _Collection) -> list[Record]:
        if collection.order is None:
            collection.order = sorted(collection.objects.values(), key=lambda record: record.key)
        return collection.order


def timestamp() -> str:
    """Return the present time in the format of ``metadata``."""
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def _found(raw: Any, path: str) -> str:
    for name in path.split("."):
        raw = raw.get(name) if isinstance(raw, dict) else None
    if isinstance(raw, bool):
        return str(raw).lower()
    return "" if raw is None else str(raw)
