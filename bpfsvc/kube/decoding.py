"""The texts of the API server that are not objects: watch events, the heads of lists, refusals.

msgspec leaves the object inside an event as text, so that the model decodes the object once, into
the model's own values. Only the metadata that a watch needs is decoded here.
"""

from __future__ import annotations

from typing import NamedTuple

import msgspec
from msgspec import field

from bpfsvc.base.clock import unix_seconds
from bpfsvc.kube.errors import InvalidResponse, Refused
from bpfsvc.model import ObjectKey

INITIAL_END = "k8s.io/initial-events-end"
_CLUSTER_KINDS = ("Node", "ServiceCIDR")
_TRIGGER = "endpoints.kubernetes.io/last-change-trigger-time"


class _Annotations(msgspec.Struct, gc=False):
    initial_end: object = field(default=None, name=INITIAL_END)
    trigger: object = field(default=None, name=_TRIGGER)


class _Metadata(msgspec.Struct, gc=False, rename="camel"):
    name: str = ""
    namespace: str | None = None
    resource_version: str = ""
    annotations: _Annotations | None = None


class _Object(msgspec.Struct, gc=False):
    metadata: _Metadata


class _Named(msgspec.Struct, gc=False):
    kind: str
    metadata: _Metadata


class _ServiceLabel(msgspec.Struct, gc=False):
    name: str = field(default="", name="kubernetes.io/service-name")


class _LabelledMetadata(msgspec.Struct, gc=False):
    labels: _ServiceLabel


class _Labelled(msgspec.Struct, gc=False):
    metadata: _LabelledMetadata


class _Event(msgspec.Struct, gc=False):
    type: str
    object: msgspec.Raw


class _ListMetadata(msgspec.Struct, gc=False, rename="camel"):
    resource_version: str = ""
    token: str | None = field(default=None, name="continue")


class _List(msgspec.Struct, gc=False, rename="camel"):
    kind: str
    api_version: str
    metadata: _ListMetadata
    items: list[msgspec.Raw] | None = None


_version = msgspec.json.Decoder(dict[str, str]).decode


def version(text: bytes) -> dict[str, str]:
    """Read the answer to ``/version``; raises :class:`InvalidResponse` for anything else."""
    try:
        return _version(text)
    except msgspec.MsgspecError as error:
        raise InvalidResponse(str(error)) from error


class _Cause(msgspec.Struct, gc=False):
    reason: str = ""


class _Details(msgspec.Struct, gc=False, rename="camel"):
    retry_after_seconds: float = 0
    causes: list[_Cause] | None = None


class _Status(msgspec.Struct, gc=False):
    kind: str
    message: str = ""
    reason: str = ""
    code: int = 0
    details: _Details | None = None


_decode_event = msgspec.json.Decoder(_Event).decode
_decode_object = msgspec.json.Decoder(_Object).decode
_decode_named = msgspec.json.Decoder(_Named).decode
_decode_labelled = msgspec.json.Decoder(_Labelled).decode
_decode_list = msgspec.json.Decoder(_List).decode
_decode_status = msgspec.json.Decoder(_Status).decode

_LONGEST_PAUSE = 300.0
"""Seconds that a server may ask to wait; more is a mistake of the server."""


class Event(NamedTuple):
    """A line of a watch. ``text`` is the object; ``trigger`` is in Unix seconds, 0 without."""

    type: str
    text: bytes
    namespace: str
    name: str
    version: str
    ends_initial: bool
    trigger: float


class Head(NamedTuple):
    """The fields of a list beside its items; ``token`` asks for the next page."""

    kind: str
    api_version: str
    version: str
    token: str


def event(line: bytes) -> Event:
    """Read a line of a watch.

    Raises :class:`Refused` for an ``ERROR``, :class:`InvalidResponse` for other text.
    """
    try:
        decoded = _decode_event(line)
        if decoded.type == "ERROR":
            raise refusal(bytes(decoded.object))
        metadata = _decode_object(decoded.object).metadata
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise InvalidResponse(f"a line of the watch is no event: {error}") from error
    notes = metadata.annotations
    return Event(
        decoded.type,
        bytes(decoded.object),
        metadata.namespace or "",
        metadata.name,
        metadata.resource_version,
        notes is not None and notes.initial_end == "true",
        unix_seconds(notes.trigger) if notes is not None and notes.trigger else 0.0,
    )


def identity(text: bytes) -> tuple[str, str]:
    """Return namespace and name of an object, empty if it has none."""
    try:
        metadata = _decode_object(text).metadata
    except (msgspec.DecodeError, UnicodeDecodeError):
        return "", ""
    return metadata.namespace or "", metadata.name


def object_key(text: bytes) -> ObjectKey | None:
    """Return the key of an object, however broken its other fields are; None if it has no name."""
    try:
        named = _decode_named(text)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return None
    if not named.metadata.name:
        return None
    namespace = "" if named.kind in _CLUSTER_KINDS else named.metadata.namespace or "default"
    return ObjectKey(named.kind, namespace, named.metadata.name)


def service_of(key: ObjectKey, text: bytes) -> tuple[str, str] | None:
    """Return the Service that the endpoints of an object belong to, if that can be read."""
    if key.kind == "Endpoints":
        return key.namespace, key.name
    if key.kind != "EndpointSlice":
        return None
    try:
        name = _decode_labelled(text).metadata.labels.name
    except (msgspec.DecodeError, UnicodeDecodeError):
        return None
    return (key.namespace, name) if name else None


def head(text: bytes) -> Head | None:
    """Read a list without its items; ``None`` if this is no list."""
    try:
        decoded = _decode_list(text)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return None
    return _head(decoded)


def whole_list(text: bytes) -> tuple[Head, list[msgspec.Raw]]:
    """Read a list with its items; raises :class:`InvalidResponse` if this is none."""
    try:
        decoded = _decode_list(text)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise InvalidResponse(f"the answer is no list: {error}") from error
    return _head(decoded), decoded.items or []


def refusal(text: bytes, code: int = 0, retry_after: str = "") -> Refused:
    """Read a ``Status``, as far as it is one; ``code`` and ``retry_after`` come from HTTP."""
    try:
        status = _decode_status(text)
    except (msgspec.DecodeError, UnicodeDecodeError):
        status = _Status("", message=text[:200].decode(errors="replace"))
    details = status.details or _Details()
    asked = float(retry_after) if retry_after.isascii() and retry_after.isdigit() else 0.0
    return Refused(
        code or status.code or 500,
        status.message or status.reason,
        retry_after=min(max(asked, details.retry_after_seconds, 0.0), _LONGEST_PAUSE),
        too_large=any(cause.reason == "ResourceVersionTooLarge" for cause in details.causes or ()),
    )


def _head(decoded: _List) -> Head:
    metadata = decoded.metadata
    return Head(decoded.kind, decoded.api_version, metadata.resource_version, metadata.token or "")
