"""The answers to lists, as "API concepts" describes them: which revision, and how many objects.

``resourceVersion`` unset: the present. ``0``: any state of the server, and then ``limit`` has no
effect (the watch cache has no pages). Another with ``resourceVersionMatch=Exact``, or with a
``limit`` alone: exactly that revision. Otherwise: at least as new. The pages of one list all show
the revision of the first; when that is forgotten, 410 with a token that goes on with the present.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Mapping
from typing import NamedTuple

import msgspec

from bpfsvc.devtools.lab.apiserver import status
from bpfsvc.devtools.lab.apiserver.resources import ApiPath
from bpfsvc.devtools.lab.apiserver.selectors import Test, field_test, label_test
from bpfsvc.devtools.lab.apiserver.status import Refusal
from bpfsvc.devtools.lab.apiserver.store import Record, Store, encode


class Options(NamedTuple):
    """The options in the query of a list or watch."""

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
    bare: bool = False
    """Objects come without ``managedFields``."""

    @classmethod
    def read(cls, query: Mapping[str, str], *, bare: bool = False) -> Options:
        """Read a query; ``Refusal`` (400) for a wrong number or truth value."""
        initial = query.get("sendInitialEvents")
        version = query.get("resourceVersion", "")
        watch = _truth(query.get("watch", "false"))
        if version and not version.isdigit():
            raise _no_version(version, watch=watch)
        return cls(
            watch=watch,
            limit=_number(query, "limit"),
            token=query.get("continue", ""),
            version=version,
            match=query.get("resourceVersionMatch", ""),
            labels=query.get("labelSelector", ""),
            fields=query.get("fieldSelector", ""),
            bookmarks=_truth(query.get("allowWatchBookmarks", "false")),
            initial_events=None if initial is None else _truth(initial),
            timeout=_number(query, "timeoutSeconds") or None,
            bare=bare,
        )


class Selection(NamedTuple):
    """The objects of a resource that a request selects."""

    namespace: str
    labels: Test | None
    fields: Test | None

    @classmethod
    def read(cls, target: ApiPath, options: Options) -> Selection:
        """Take the namespace of the path and the selectors of the query."""
        labels = label_test(options.labels)
        return cls(target.namespace, labels, field_test(options.fields, target.resource))

    def contains(self, record: Record) -> bool:
        """True if an object is below the path."""
        return not self.namespace or record.key[0] == self.namespace

    def selects(self, record: Record) -> bool:
        """True if an object is below the path and the selectors choose it."""
        return (
            self.contains(record)
            and (self.labels is None or self.labels(record.labels))
            and (self.fields is None or self.fields(record.fields))
        )


class _Token(msgspec.Struct):
    """The contents of a ``continue`` token, as recorded; revision -1 means the present."""

    v: str
    rv: int
    start: str

    def text(self) -> str:
        return base64.urlsafe_b64encode(encode(self)).decode().rstrip("=")


def answer(store: Store, target: ApiPath, options: Options) -> bytes:
    """Return the body of a list; ``Refusal`` for options that are wrong or revisions forgotten."""
    _check(options)
    selection = Selection.read(target, options)
    with store.lock:
        if options.token:
            version, start = _continued(store, options.token)
        else:
            version, start = _revision(store, options), ""
        try:
            records = store.at(target.resource, version)
        except Refusal:
            if not options.token:
                raise
            raise status.list_too_old(_Token("meta.k8s.io/v1", -1, start).text()) from None
    after = start.removesuffix("\0")
    rest = [record for record in records if not start or _text(record) > after]
    chosen = [record for record in rest if selection.selects(record)]
    limit = 0 if options.version == "0" else options.limit
    metadata: dict[str, object] = {"resourceVersion": str(version)}
    if limit and len(chosen) >= limit:
        # What a selector leaves out counts here: the last page of a list may be empty.
        last = _text(chosen[limit - 1])
        left = sum(selection.contains(record) and _text(record) > last for record in rest)
        if left:
            metadata["continue"] = _Token("meta.k8s.io/v1", version, last + "\0").text()
            if not options.labels and not options.fields:
                metadata["remainingItemCount"] = left
        chosen = chosen[:limit]
    return b'{"kind":"%sList","apiVersion":"%s","metadata":%s,"items":[%s]}\n' % (
        target.resource.kind.encode(),
        target.resource.api_version.encode(),
        encode(metadata),
        b",".join([record.text(bare=options.bare) for record in chosen]),
    )


def _text(record: Record) -> str:
    """Return the key as etcd orders it."""
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
        decoded = msgspec.json.decode(base64.urlsafe_b64decode(padded), type=_Token)
    except (binascii.Error, UnicodeError, msgspec.DecodeError) as error:
        text = f"invalid continue token: continue key is not valid: {error}"
        raise Refusal(400, text) from None
    return (store.version if decoded.rv < 0 else decoded.rv), decoded.start


def _check(options: Options) -> None:
    match = options.match
    if match:
        field = "resourceVersionMatch"
        if not options.version:
            raise status.forbidden_option(
                field, "resourceVersionMatch is forbidden unless resourceVersion is provided"
            )
        if options.token:
            raise status.forbidden_option(field, f"{field} is forbidden when continue is provided")
        if match not in ("Exact", "NotOlderThan"):
            known = ("Exact", "NotOlderThan", "")
            raise status.wrong_options(status.unsupported_value(field, match, known))
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


def _no_version(text: str, *, watch: bool) -> Refusal:
    """Return the refusal of a version that is no number; a watch's refusal has no reason."""
    why = f'resourceVersion: Invalid value: "{text}": strconv.ParseUint: parsing "{text}": invalid'
    if watch:
        return Refusal(500, f"{why} syntax", reason=None)
    return Refusal(400, f"invalid resource version: {why} syntax")


def _truth(text: str) -> bool:
    return text.lower() not in ("false", "0")


def _number(query: Mapping[str, str], name: str) -> int:
    """Return a number; 0 for a negative number."""
    text = query.get(name, "")
    if text and not text.removeprefix("-").isdigit():
        raise Refusal(400, f'strconv.ParseInt: parsing "{text}": invalid syntax')
    return max(0, int(text or 0))
