"""The answers to lists, as "API concepts" describes them: which revision, and how much of it.

``resourceVersion`` unset: the present. ``0``: whatever the server has, and then ``limit`` has no
effect (the watch cache knows no pages). Another with ``resourceVersionMatch=Exact``, or with a
``limit`` alone: that very revision. Otherwise: at least as new. The pages of one list all show the
revision of the first; when that is forgotten, 410 with a token that goes on with the present.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Mapping
from typing import NamedTuple

import msgspec

from bpfsvc.lab.apiserver import status
from bpfsvc.lab.apiserver.resources import Place
from bpfsvc.lab.apiserver.selectors import Test, field_test, label_test
from bpfsvc.lab.apiserver.status import Refusal
from bpfsvc.lab.apiserver.store import Record, Store, encode


class Options(NamedTuple):
    """What the query of a list or watch says."""

    watch: bool = False
    limit: int = 0
    token: str = ""
    version: str = ""
    match: str = ""
    labels: str = ""
    fields: str = ""
    bookmarks: bool = False
    initial_events: bool | None = None
    timeout: float | None = None

    @classmethod
    def read(cls, query: Mapping[str, str]) -> Options:
        """Read a query; ``Refusal`` (400) for what is no number or truth value."""
        initial = query.get("sendInitialEvents")
        version = query.get("resourceVersion", "")
        if version and not version.isdigit():
            raise Refusal(400, f"resourceVersion: Invalid value: {version!r}")
        return cls(
            watch=_truth(query.get("watch", "false")),
            limit=_number(query, "limit"),
            token=query.get("continue", ""),
            version=version,
            match=query.get("resourceVersionMatch", ""),
            labels=query.get("labelSelector", ""),
            fields=query.get("fieldSelector", ""),
            bookmarks=_truth(query.get("allowWatchBookmarks", "false")),
            initial_events=None if initial is None else _truth(initial),
            timeout=_number(query, "timeoutSeconds") or None,
        )


class Selection(NamedTuple):
    """Which objects of a resource are meant."""

    namespace: str
    labels: Test | None
    fields: Test | None

    @classmethod
    def read(cls, place: Place, options: Options) -> Selection:
        """Take the namespace of the path and the selectors of the query."""
        labels = label_test(options.labels)
        return cls(place.namespace, labels, field_test(options.fields, place.resource))

    def selects(self, record: Record) -> bool:
        """Whether an object is meant."""
        return (
            (not self.namespace or record.key[0] == self.namespace)
            and (self.labels is None or self.labels(record.labels))
            and (self.fields is None or self.fields(record.fields))
        )


class _Token(msgspec.Struct):
    """What a ``continue`` token holds, as recorded; revision -1 means the present."""

    v: str
    rv: int
    start: str

    def text(self) -> str:
        return base64.urlsafe_b64encode(encode(self)).decode().rstrip("=")


def answer(store: Store, place: Place, options: Options) -> bytes:
    """Give the body of a list; ``Refusal`` for options that are wrong or revisions forgotten."""
    _check(options)
    selection = Selection.read(place, options)
    with store.lock:
        if options.token:
            version, start = _continued(store, options.token)
        else:
            version, start = _revision(store, options), ""
        try:
            records = store.at(place.resource, version)
        except Refusal:
            if not options.token:
                raise
            raise status.list_too_old(_Token("meta.k8s.io/v1", -1, start).text()) from None
    after = start.removesuffix("\0")
    chosen = [
        record
        for record in records
        if selection.selects(record) and (not start or _text(record) > after)
    ]
    limit = 0 if options.version == "0" else options.limit
    metadata: dict[str, object] = {"resourceVersion": str(version)}
    if limit and len(chosen) > limit:
        following = _text(chosen[limit - 1]) + "\0"
        metadata["continue"] = _Token("meta.k8s.io/v1", version, following).text()
        if not options.labels and not options.fields:
            metadata["remainingItemCount"] = len(chosen) - limit
        chosen = chosen[:limit]
    return b'{"kind":"%sList","apiVersion":"%s","metadata":%s,"items":[%s]}\n' % (
        place.resource.kind.encode(),
        place.resource.api_version.encode(),
        encode(metadata),
        b",".join([record.item for record in chosen]),
    )


def _text(record: Record) -> str:
    """Give the key as etcd orders it."""
    return "/".join(filter(None, record.key))


def _revision(store: Store, options: Options) -> int:
    asked = int(options.version or 0)
    if asked > store.version:
        raise status.too_large(asked, store.version)
    exact = options.match == "Exact" or (options.limit and not options.match)
    return asked if asked and exact else store.version


def _continued(store: Store, token: str) -> tuple[int, str]:
    if not token:
        return 0, ""
    padded = token + "=" * (-len(token) % 4)
    try:
        found = msgspec.json.decode(base64.urlsafe_b64decode(padded), type=_Token)
    except (binascii.Error, UnicodeError, msgspec.DecodeError) as error:
        raise Refusal(400, f"continue key is not valid: {error}") from None
    return (store.version if found.rv < 0 else found.rv), found.start


def _check(options: Options) -> None:
    match = options.match
    if match:
        field = "resourceVersionMatch"
        if not options.version:
            raise status.forbidden_option(
                field, "resourceVersionMatch is forbidden unless resourceVersion is provided"
            )
        if options.token:
            raise status.forbidden_option(field, "resourceVersionMatch is forbidden with continue")
        if match not in ("Exact", "NotOlderThan"):
            raise Refusal(422, f'ListOptions.meta.k8s.io "" is invalid: {field}: "{match}"')
        if match == "Exact" and options.version == "0":
            raise status.forbidden_option(
                field, 'resourceVersionMatch "exact" is forbidden for resourceVersion "0"'
            )
    if options.initial_events is not None:
        raise status.forbidden_option(
            "sendInitialEvents", "sendInitialEvents is forbidden for list"
        )
    if options.token and options.version not in ("", "0"):
        raise Refusal(400, "specifying resource version is not allowed when using continue")


def _truth(text: str) -> bool:
    return text.lower() not in ("false", "0")


def _number(query: Mapping[str, str], name: str) -> int:
    text = query.get(name, "")
    if text and not text.isdigit():
        raise Refusal(400, f"{name}: {text!r} is no number")
    return int(text or 0)
