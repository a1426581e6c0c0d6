"""The objects of one resource on their way from text to values.

The tracker keeps no object, only what the next change needs: how many parts a classic Endpoints
object has, so that lost parts are reported as gone, and which objects cannot be read, so that they
are reported until they are fixed. An object that cannot be read keeps its last value.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import NamedTuple

from bpfsvc.kube import decoding
from bpfsvc.kube.decoding import Event, Head
from bpfsvc.kube.deltas import Identity, Update, triggers
from bpfsvc.kube.resources import Variant
from bpfsvc.kube.source import Names, ParseError, Trigger
from bpfsvc.model import ModelObject, ObjectError, ObjectKey, read_json

_CLASSIC = "Endpoints"

Objects = tuple[ModelObject, ...]

Found = Iterator[tuple[Identity, bytes | None]]
"""Objects as text; ``None`` for one that is gone."""


class _Broken(NamedTuple):
    """Why an object cannot be read, and the Service that its endpoints belong to."""

    reason: str
    service: Identity | None


class ObjectTracker:
    """What must be kept of one resource's objects to report their changes."""

    def __init__(self, resource: str, variant: Variant) -> None:
        self._resource = resource
        self._variant = variant
        self._parts: dict[Identity, int] = {}
        self._broken: dict[Identity, _Broken] = {}

    def change(self, events: Iterable[Event], since: float) -> Update | None:
        """Read events of a watch; return ``None`` if they change nothing.

        Triggers before ``since`` (Unix seconds) are left out.
        """
        puts: list[ModelObject] = []
        gone: list[ObjectKey] = []
        caused_by: list[Trigger] = []
        broken = dict(self._broken) if self._broken else {}
        latest = {(event.namespace, event.name): event for event in events}
        for identity, event in latest.items():
            if event.type == "DELETED":
                gone += self._forget(identity)
                continue
            objects = self._read(identity, event.text)
            if objects is None:
                continue
            puts += objects
            gone += self._lost_parts(identity, len(objects))
            if event.trigger >= since:
                caused_by += triggers(objects, event.trigger)
        problems = self.problems() if broken != self._broken else None
        if not puts and not gone and problems is None:
            return None
        return Update(
            self._resource, tuple(puts), tuple(gone), problems=problems, triggers=tuple(caused_by)
        )

    def replace(
        self, listed: Iterable[tuple[Identity, bytes | None]], others: Iterable[str]
    ) -> Update:
        """Read all objects that exist; objects of the kinds ``others`` are gone.

        Of an identity that comes twice the last text counts. If ``found`` raises, everything stays
        as it was.
        """
        fresh = ObjectTracker(self._resource, self._variant)
        puts: dict[Identity, Objects] = {}
        for identity, text in listed:
            fresh._broken.pop(identity, None)
            objects = fresh._read(identity, text) if text is not None else None
            if objects is None:
                puts.pop(identity, None)
            else:
                puts[identity] = objects
        names: Names
        if self._variant.kind == _CLASSIC:
            for identity in fresh._broken.keys() & self._parts.keys():
                fresh._parts[identity] = self._parts[identity]
            fresh._parts |= {identity: len(some) for identity, some in puts.items() if some}
            names = frozenset(
                part for identity, count in fresh._parts.items() for part in _parts(identity, count)
            )
        else:
            names = frozenset(puts.keys() | fresh._broken.keys())
        self._parts, self._broken = fresh._parts, fresh._broken
        gone: Iterable[tuple[str, Names]] = ((kind, frozenset()) for kind in others)
        return Update(
            self._resource,
            tuple(item for some in puts.values() for item in some),
            listed=((self._variant.kind, names), *gone),
            problems=self.problems(),
        )

    def problems(self) -> tuple[ParseError, ...]:
        """Return all objects that cannot be read, in the order of their names."""
        return tuple(
            ParseError(_name(self._variant, identity), 0, reason, self._key(identity), service)
            for identity, (reason, service) in sorted(self._broken.items())
        )

    def _read(self, identity: Identity, text: bytes) -> Objects | None:
        try:
            objects = read_json(text)
        except ObjectError as error:
            service = decoding.service_of(self._key(identity), text)
            self._broken[identity] = _Broken(error.message, service)
            return None
        self._broken.pop(identity, None)
        return objects

    def _forget(self, identity: Identity) -> Iterator[ObjectKey]:
        self._broken.pop(identity, None)
        if self._variant.kind == _CLASSIC:
            yield from self._lost_parts(identity, 0)
        else:
            yield self._key(identity)

    def _lost_parts(self, identity: Identity, count: int) -> Iterator[ObjectKey]:
        """Return the parts that a classic object had beyond ``count``; store how many it has."""
        if self._variant.kind != _CLASSIC:
            return
        before = self._parts.pop(identity, 0)
        if count:
            self._parts[identity] = count
        for namespace, name in _parts(identity, before, count):
            yield ObjectKey(_CLASSIC, namespace, name)

    def _key(self, identity: Identity) -> ObjectKey:
        return ObjectKey(self._variant.kind, *identity)


def with_kind(item: bytes, head: Head) -> tuple[Identity, bytes]:
    """Return an item of a list with kind and apiVersion, which only the list has."""
    kind = head.kind.removesuffix("List")
    prefix = f'{{"kind":"{kind}","apiVersion":"{head.api_version}",'
    return decoding.identity(item), prefix.encode() + item[1:]


def _parts(identity: Identity, count: int, first: int = 0) -> Iterator[Identity]:
    """Return the names of the parts of a classic object, as the model numbers them."""
    namespace, name = identity
    for number in range(first, count):
        yield namespace, f"{name}-{number}"


def _name(variant: Variant, identity: Identity) -> str:
    namespace, name = identity
    return f"{variant.kind} {namespace}/{name}" if namespace else f"{variant.kind} {name}"
