"""events.k8s.io/v1: what a server accepts of an Event, and how it is patched.

A server that took anything would hide mistakes: the fields that a real one requires of this API
version, and their lengths, are checked (API reference, "Event v1 events.k8s.io"). A patch is a JSON
merge patch (RFC 7386); a strategic merge patch of an Event means the same, for none of its lists
has a merge key that matters here.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from bpfsvc.lab.apiserver.resources import EVENTS, Key
from bpfsvc.lab.apiserver.status import Refusal
from bpfsvc.lab.apiserver.store import Record, Store

PATCHES = ("application/merge-patch+json", "application/strategic-merge-patch+json")

_SHORT, _NOTE = 128, 1024
_CLUSTER_WIDE = ("default", "kube-system")


def create(store: Store, namespace: str, raw: dict[str, Any]) -> Record:
    """Store a new Event; ``Refusal`` (400, 409, 422) as a real server would."""
    _typed(raw)
    metadata = raw.setdefault("metadata", {})
    if metadata.get("namespace", namespace) != namespace:
        raise Refusal(
            400,
            "the namespace of the provided object does not match the namespace sent on the request",
        )
    metadata["namespace"] = namespace
    with store.lock:
        if not metadata.get("name") and metadata.get("generateName"):
            metadata["name"] = f"{metadata['generateName']}{store.version:05x}"
        _check(raw)
        if store.get("Event", namespace, metadata["name"]) is not None:
            name = metadata["name"]
            raise Refusal(
                409, f'events.events.k8s.io "{name}" already exists', details=_which(name)
            )
        return store.put(raw)


def patch(store: Store, key: Key, content_type: str, change: dict[str, Any]) -> Record:
    """Merge ``change`` into a stored Event; ``Refusal`` (404, 415, 422) as a real server would."""
    if content_type.partition(";")[0].strip() not in PATCHES:
        accepted = ", ".join(PATCHES)
        raise Refusal(
            415,
            "the body of the request was in an unknown format - accepted media types include: "
            + accepted,
        )
    with store.lock:
        record = store.get("Event", *key)
        if record is None:
            raise Refusal(404, f'events.events.k8s.io "{key[1]}" not found', details=_which(key[1]))
        before = record.raw()
        raw = merged(before, change)
        _typed(raw)
        raw["metadata"] |= {"name": key[1], "namespace": key[0]}
        _check(raw)
        for field in ("regarding", "reason", "action", "reportingController", "eventTime"):
            if raw.get(field) != before.get(field):
                raise _invalid(key[1], [(field, "Invalid value: field is immutable")])
        return store.put(raw)


def merged(target: Any, change: Any) -> Any:
    """Apply a JSON merge patch: null removes, an object is merged, anything else replaces."""
    if not isinstance(change, dict):
        return change
    result = dict(target) if isinstance(target, dict) else {}
    for name, value in change.items():
        if value is None:
            result.pop(name, None)
        else:
            result[name] = merged(result.get(name), value)
    return result


def _typed(raw: Mapping[str, Any]) -> None:
    said = raw.get("apiVersion"), raw.get("kind")
    if said != (EVENTS.api_version, EVENTS.kind):
        raise Refusal(400, f"the object provided is unrecognized: {said[0]}, Kind={said[1]}")


def _check(raw: Mapping[str, Any]) -> None:
    name = raw["metadata"].get("name", "")
    if found := list(_mistakes(raw)):
        raise _invalid(name, found)


def _mistakes(raw: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    metadata = raw["metadata"]
    if not metadata.get("name"):
        yield "metadata.name", "Required value: name or generateName is required"
    for field in ("reportingController", "reportingInstance", "action", "reason"):
        value = raw.get(field)
        if not value:
            yield field, "Required value"
        elif len(value) > _SHORT:
            yield field, f"Invalid value: can have at most {_SHORT} characters"
    if not raw.get("eventTime"):
        yield "eventTime", "Required value"
    if len(raw.get("note", "").encode()) > _NOTE:
        yield "message", f"Invalid value: can have at most {_NOTE} characters"
    if raw.get("type") not in ("Normal", "Warning"):
        yield "type", 'Invalid value: "": has invalid value: ' + str(raw.get("type", ""))
    place = raw.get("regarding", {}).get("namespace", "")
    wrong = (
        metadata["namespace"] not in _CLUSTER_WIDE
        if not place
        else (place != metadata["namespace"])
    )
    if wrong:
        yield "involvedObject.namespace", "Invalid value: does not match event.namespace"
    series = raw.get("series")
    if series is not None:
        if series.get("count", 0) < 2:
            yield "series.count", "Invalid value: should be at least 2"
        if not series.get("lastObservedTime"):
            yield "series.lastObservedTime", "Required value"


def _invalid(name: str, mistakes: list[tuple[str, str]]) -> Refusal:
    listed = "; ".join(f"{field}: {why}" for field, why in mistakes)
    causes = [{"reason": "FieldValueInvalid", "message": why, "field": at} for at, why in mistakes]
    return Refusal(
        422,
        f'Event.events.k8s.io "{name}" is invalid: {listed}',
        details=_which(name) | {"causes": causes},
    )


def _which(name: str) -> dict[str, Any]:
    return {"name": name, "group": EVENTS.group, "kind": EVENTS.plural}
