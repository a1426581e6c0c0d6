"""events.k8s.io/v1: which Events a server accepts, and how an Event is patched.

A server that accepts anything would hide mistakes: the fields that a real one requires of this API
version, and their lengths, are checked (API reference, "Event v1 events.k8s.io"). A patch is a JSON
merge patch (RFC 7386); a strategic merge patch of an Event means the same, for none of its lists
has a merge key that matters here.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from datetime import datetime
from typing import Any

from bpfsvc.devtools.lab.apiserver import status
from bpfsvc.devtools.lab.apiserver.resources import EVENTS, ApiPath, Key
from bpfsvc.devtools.lab.apiserver.status import Mistake, Refusal
from bpfsvc.devtools.lab.apiserver.store import Record, Store

PATCHES = ("application/merge-patch+json", "application/strategic-merge-patch+json")

_SHORT, _NOTE = 128, 1024
_CLUSTER_WIDE = ("default", "kube-system")
_EMPTY: dict[str, Any] = {
    "deprecatedSource": {},
    "deprecatedFirstTimestamp": None,
    "deprecatedLastTimestamp": None,
}
"""What Go prints for fields that only older versions of the API have."""

_SUBDOMAIN = r"[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*"
_NOT_SUBDOMAIN = (
    "a lowercase RFC 1123 subdomain must consist of lower case alphanumeric characters, '-' or "
    "'.', and must start and end with an alphanumeric character (e.g. 'example.com', regex used "
    f"for validation is '{_SUBDOMAIN}')"
)
_NAME_PART = "([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9]"
_NOT_NAME_PART = (
    "name part must consist of alphanumeric characters, '-', '_' or '.', and must start and end "
    "with an alphanumeric character (e.g. 'MyName',  or 'my.name',  or '123-abc', regex used for "
    f"validation is '{_NAME_PART}')"
)

_UNCHANGEABLE = (
    *("regarding", "reason", "note", "reason", "type", "eventTime", "action", "related"),
    *("reportingController", "reportingInstance"),
)
"""Fields in the order of the server's checks; it checks the reason twice."""

_INTERNAL = {"regarding": "involvedObject", "note": "message"}
"""Names of fields in messages: the names of the server's own type."""


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
        _refuse(raw, [*_mistakes(raw), *_mistakes_of_new(raw), *_mistakes_of_series(raw)])
        if store.get("Event", namespace, metadata["name"]) is not None:
            name = metadata["name"]
            text = f'events.events.k8s.io "{name}" already exists'
            details = {"name": name, "group": EVENTS.group, "kind": EVENTS.plural}
            raise Refusal(409, text, details=details)
        return store.put(_printed(raw))


def patch(store: Store, key: Key, content_type: str, change: dict[str, Any]) -> Record:
    """Merge ``change`` into a stored Event; ``Refusal`` (404, 415, 422) as a real server would."""
    if content_type.partition(";")[0].strip() not in PATCHES:
        raise Refusal(415, "415: Unsupported Media Type", details={})
    with store.lock:
        record = store.get("Event", *key)
        if record is None:
            raise status.not_found(ApiPath(EVENTS, *key))
        before = record.raw()
        raw = merged(before, change)
        _typed(raw)
        raw["metadata"] |= {"name": key[1], "namespace": key[0]}
        series = _mistakes_of_series(raw) if raw.get("series") != before.get("series") else ()
        _refuse(raw, [*_mistakes(raw), *series, *_changed(before, raw)])
        return store.put(_printed(raw))


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


def _printed(raw: Mapping[str, Any]) -> dict[str, Any]:
    """Return an Event as a server prints it: without empty texts, with the fields that Go adds."""
    return {name: value for name, value in raw.items() if value != ""} | _EMPTY


def _typed(raw: Mapping[str, Any]) -> None:
    version, kind = raw.get("apiVersion"), raw.get("kind")
    if kind != EVENTS.kind:
        raise Refusal(
            400,
            f'{kind} in version "v1" cannot be handled as a Event: no kind "{kind}" is registered '
            f'for version "{version}" in scheme "pkg/api/legacyscheme/scheme.go:30"',
        )
    if version != EVENTS.api_version:
        raise Refusal(
            400,
            f"the API version in the data ({version}) does not match the expected API version "
            f"({EVENTS.api_version})",
        )
    try:
        datetime.fromisoformat(raw.get("eventTime") or "2026-01-01T00:00:00Z")
    except (TypeError, ValueError):
        text = (
            f'Event in version "v1" cannot be handled as a Event: parsing time "{raw["eventTime"]}"'
        )
        raise Refusal(400, text) from None


def _refuse(raw: Mapping[str, Any], mistakes: list[Mistake]) -> None:
    """Raise ``Refusal`` (422) if there are mistakes."""
    if mistakes:
        name = raw["metadata"].get("name", "")
        which = {"name": name, "kind": EVENTS.kind} if name else {"kind": EVENTS.kind}
        raise status.invalid(f'Event "{name}"', which, mistakes)


def _mistakes(raw: Mapping[str, Any]) -> Iterator[Mistake]:
    """Return the mistakes of an Event, new or changed."""
    namespace = raw["metadata"]["namespace"]
    if not raw.get("eventTime"):
        return  # one of an older version of the API
    if not raw.get("regarding", {}).get("namespace") and namespace not in _CLUSTER_WIDE:
        yield _invalid("involvedObject.namespace", "does not match event.namespace")
    for field in ("reportingController", "reportingInstance", "action", "reason"):
        value = raw.get(field, "")
        if not value:
            yield _required(field)
        if field == "reportingController":
            if not value:
                yield _invalid(field, "name part must be non-empty")
            if not re.fullmatch(_NAME_PART, value):
                yield _invalid(field, _NOT_NAME_PART, value)
        elif len(value) > _SHORT:
            yield _invalid(field, f"can have at most {_SHORT} characters")
    if len(raw.get("note", "").encode()) > _NOTE:
        yield _invalid("message", f"can have at most {_NOTE} characters")


def _mistakes_of_new(raw: Mapping[str, Any]) -> Iterator[Mistake]:
    name = raw["metadata"].get("name", "")
    if not name:
        yield _required("metadata.name", "name or generateName is required")
    elif not re.fullmatch(_SUBDOMAIN, name):
        yield _invalid("metadata.name", _NOT_SUBDOMAIN, name)
    if not raw.get("eventTime"):
        yield _required("eventTime")
    if raw.get("type") not in ("Normal", "Warning"):
        yield _invalid("type", f"has invalid value: {raw.get('type', '')}")


def _mistakes_of_series(raw: Mapping[str, Any]) -> Iterator[Mistake]:
    series = raw.get("series")
    if series is None:
        return
    if series.get("count", 0) < 2:
        yield _invalid("series.count", "should be at least 2")
    if not series.get("lastObservedTime"):
        yield _required("series.lastObservedTime")


def _changed(before: Mapping[str, Any], after: Mapping[str, Any]) -> Iterator[Mistake]:
    """Return the mistakes of a patch that changes more than the series."""
    for field in _UNCHANGEABLE:
        if after.get(field) != before.get(field):
            value = str(after.get(field, ""))
            yield _invalid(_INTERNAL.get(field, field), "field is immutable", value)


def _required(field: str, why: str = "") -> Mistake:
    return Mistake(
        field, "FieldValueRequired", f"Required value: {why}" if why else "Required value"
    )


def _invalid(field: str, why: str, value: str = "") -> Mistake:
    return Mistake(field, "FieldValueInvalid", f'Invalid value: "{value}": {why}')
