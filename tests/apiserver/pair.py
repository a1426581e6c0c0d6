"""A real API server and the lab's, with the same objects, asked the same questions.

Every change is made on the real server. It is read back from its watch and applied to the lab's at
the same resourceVersion; so objects and events must be equal to the byte. The real server counts
changes of other resources too (leases, addresses), so versions that are not those of an object,
such as the one of a list, are compared by their rank among the known ones. A list that may be any
old one, and a bookmark, may lag behind on a real server: their versions are not compared.
"""

from __future__ import annotations

import base64
import bisect
import difflib
import json
import re
import ssl
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple, Protocol

from bpfsvc.devtools.lab.apiserver import ApiServer, replay
from bpfsvc.devtools.lab.apiserver.replay import Recorded
from bpfsvc.devtools.lab.apiserver.resources import RESOURCES, Resource, of_object
from tests.kube.requests import Answer, Stream, path, send

_HEADERS = ("content-type", "cache-control", "retry-after")
_NUMBER = re.compile(r"\b\d+\b")


Query = dict[str, Any]


class Restartable(Protocol):
    """The real server (``tests.apiserver.kubernetes``)."""

    port: int
    tls: ssl.SSLContext

    def compact(self) -> None: ...
    def restart(self) -> None: ...


class Seen(NamedTuple):
    """What a client sees of an answer: code, headers, and its lines of JSON or its text."""

    status: int
    headers: dict[str, str]
    body: Any


class Pair:
    """Both servers. ``token`` is who asks, where nothing else is said."""

    def __init__(self, real: Restartable, lab: ApiServer, token: str = "admin") -> None:
        self.real, self.lab = real, lab
        self._token = token
        self.before = 0
        """A version to ask for; the test sets it."""
        self._streams: dict[Resource, Stream] = {}
        self._versions: list[int] = []
        """Of all changes, in order."""
        for resource in RESOURCES:
            self.lab.store.load(self._send("GET", _place(resource)).body)
        for resource in RESOURCES:
            self._versions += [record.version for record in self.lab.store.all(resource.plural)]
        self._versions = sorted({*self._versions, self.lab.store.version})
        self._open()

    @property
    def version(self) -> int:
        """The version of the last change."""
        return self.lab.store.version

    def versions(self) -> list[int]:
        """Return the versions of all changes since the servers know the same."""
        return list(self._versions)

    def close(self) -> None:
        """End the watches."""
        for stream in self._streams.values():
            stream.close()
        self._streams.clear()

    # -- changes ------------------------------------------------------------------------------

    def put(self, raw: dict[str, Any]) -> dict[str, Any]:
        """Create an object, or replace it; return it as stored."""
        resource, metadata = of_object(raw), raw["metadata"]
        url_path = _place(resource, metadata.get("namespace", ""))
        record = self.lab.store.get(
            resource.plural, metadata.get("namespace", ""), metadata["name"]
        )
        if record is None:
            answer = self._send("POST", url_path, raw)
        else:
            answer = self._send("PUT", f"{url_path}/{metadata['name']}", raw)
        assert answer.status in (200, 201), answer.data
        stored = answer.body
        self._mirror(resource, int(stored["metadata"]["resourceVersion"]))
        return stored

    def merge(self, raw: dict[str, Any], change: dict[str, Any]) -> None:
        """Change an object by a merge patch."""
        self._written("PATCH", raw, change)

    def delete(self, raw: dict[str, Any]) -> None:
        """Delete an object; one with a finalizer is only marked."""
        self._written("DELETE", raw, {"gracePeriodSeconds": 0})

    def forget(self) -> None:
        """Make both forget the history."""
        self.close()
        self.real.compact()
        self.real.restart()
        self.lab.compact()
        self._open()

    def _written(self, method: str, raw: dict[str, Any], body: dict[str, Any]) -> None:
        resource, metadata = of_object(raw), raw["metadata"]
        target = f"{_place(resource, metadata.get('namespace', ''))}/{metadata['name']}"
        kind = "application/merge-patch+json" if method == "PATCH" else "application/json"
        answer = self._send(method, target, body, kind=kind)
        assert answer.status == 200, answer.data
        self._mirror(resource, self.version + 1)

    def _mirror(self, resource: Resource, version: int) -> None:
        """Apply the events of a resource up to the one of a version."""
        while self.version < version:
            event = self._streams[resource].event()
            replay.apply(self.lab.store, Recorded(0.0, event["type"], event["object"]))
            self._versions.append(self.version)

    def _open(self) -> None:
        for resource in RESOURCES:
            self._streams[resource] = Stream(
                self.real,
                _place(resource),
                headers=self._headers(None),
                tls=self.real.tls,
                resourceVersion=self.version,
            )

    # -- questions ----------------------------------------------------------------------------

    def seen(
        self, url_path: str, *, token: str | None = None, accept: str = "*/*", **query: Any
    ) -> tuple[Seen, Seen]:
        """Get a list, an object or a watch up to its end from both: the real one's comes first."""
        both = self.both("GET", (path(url_path, **query),) * 2, token=token, accept=accept)
        real, lab = (self.normal(answer) for answer in both)
        if _may_lag(query):
            return _without_version(real), _without_version(lab)
        return real, lab

    def pages(self, url_path: str, limit: int) -> Pages:
        """Begin to read a list in pages."""
        return Pages(self, url_path, limit)

    def bookmarks(self, url_path: str, **query: Any) -> tuple[list[Any], list[Any]]:
        """Return the bookmarks of a watch up to its end, without their version."""
        query |= {"watch": 1, "allowWatchBookmarks": "true"}
        real, lab = (
            [line for line in map(json.loads, answer.data.splitlines()) if _is_bookmark(line)]
            for answer in self.both("GET", (path(url_path, **query),) * 2)
        )
        for line in (*real, *lab):
            # It may lag behind the newest change, and does so on a real server.
            line["object"]["metadata"].pop("resourceVersion")
        return real, lab

    def many(self, questions: list[tuple[str, dict[str, Any]]]) -> list[tuple[Seen, Seen]]:
        """Ask many questions at the same time."""
        with ThreadPoolExecutor(16) as pool:
            return list(pool.map(lambda question: self.seen(question[0], **question[1]), questions))

    def send(
        self,
        method: str,
        target: str,
        body: Any = None,
        kind: str = "application/json",
        *,
        token: str | None = None,
    ) -> tuple[Seen, Seen]:
        """Send a request that changes nothing, or an Event, to both.

        Each gives an Event its own identity, which is left out.
        """
        both = self.both(method, (target, target), body, kind=kind, token=token)
        real, lab = (self.normal(answer) for answer in both)
        return _without_identity(real), _without_identity(lab)

    def both(
        self,
        method: str,
        targets: tuple[str, str],
        body: Any = None,
        *,
        kind: str = "application/json",
        token: str | None = None,
        accept: str = "*/*",
    ) -> tuple[Answer, Answer]:
        """Send a request to both; their paths may differ."""
        real = self._send(method, targets[0], body, token=token, kind=kind, accept=accept)
        headers = self._headers(token) | {"Content-Type": kind, "Accept": accept}
        return real, send(self.lab, method, targets[1], body, headers)

    def _send(
        self,
        method: str,
        target: str,
        body: Any = None,
        *,
        token: str | None = None,
        kind: str = "application/json",
        accept: str = "*/*",
    ) -> Answer:
        headers = self._headers(token) | {"Content-Type": kind, "Accept": accept}
        return send(self.real, method, target, body, headers, self.real.tls)

    def _headers(self, token: str | None) -> dict[str, str]:
        return {"Authorization": f"Bearer {self._token if token is None else token}"}

    # -- what cannot be equal -----------------------------------------------------------------

    def normal(self, answer: Answer) -> Seen:
        """Return what a client sees, without what two servers cannot have in common."""
        headers = {name: answer.headers[name] for name in _HEADERS if name in answer.headers}
        try:
            lines = [json.loads(line) for line in answer.data.splitlines()]
        except ValueError:
            return Seen(answer.status, headers, answer.data.decode())
        bodies = [self._ranked(line) for line in lines if not _is_bookmark(line)]
        return Seen(answer.status, headers, bodies)

    def _ranked(self, body: Any) -> Any:
        """Replace what differs between two servers: versions of lists and bookmarks, tokens."""
        if body.get("type") in ("ADDED", "MODIFIED", "DELETED"):
            return body
        if "object" in body:
            return body | {"object": self._ranked(body["object"])}
        metadata = dict(body.get("metadata") or {})
        if "uid" in metadata:
            return body
        if metadata.get("resourceVersion"):
            metadata["resourceVersion"] = self._rank(int(metadata["resourceVersion"]))
        if metadata.get("continue"):
            metadata["continue"] = self._token_text(metadata["continue"])
        ranked = body | {"metadata": metadata}
        if ranked.get("code") in (410, 504):
            ranked["message"] = _NUMBER.sub("#", ranked["message"])
        if ranked.get("code") == 400:
            # The words about the syntax are those of Go.
            ranked["message"] = ""
        return ranked

    def _rank(self, version: int) -> str:
        return f"rank {bisect.bisect_right(self._versions, version)}"

    def _token_text(self, token: str) -> Any:
        fields = json.loads(base64.urlsafe_b64decode(token + "=" * (-len(token) % 4)))
        version = fields["rv"]
        # How a server writes the key where the next page starts is its own business.
        return self._rank(version) if version > 0 else version


def assert_same(two: tuple[Seen, Seen], question: object = "") -> Seen:
    """Fail with what differs; return the answer of the real server."""
    real, lab = (json.dumps(seen._asdict(), indent=1, sort_keys=True).splitlines() for seen in two)
    differing = list(difflib.unified_diff(real, lab, "real", "lab", lineterm=""))
    assert not differing, "\n".join([str(question), *differing])
    return two[0]


class Pages:
    """A list that is read page by page, each server with its own tokens."""

    def __init__(self, pair: Pair, url_path: str, limit: int) -> None:
        self._pair = pair
        self._place = url_path
        self._limit = limit
        self._tokens = ("", "")

    def next(self) -> tuple[Seen, Seen]:
        """Get the next page, or the refusal, which has a token too."""
        real, lab = (
            path(self._place, limit=self._limit, **({"continue": token} if token else {}))
            for token in self._tokens
        )
        answers = self._pair.both("GET", (real, lab))
        first, second = (answer.body["metadata"].get("continue", "") for answer in answers)
        self._tokens = (first, second)
        return self._pair.normal(answers[0]), self._pair.normal(answers[1])

    @property
    def is_last(self) -> bool:
        """True if there is no further page, of both."""
        return not any(self._tokens)


def _may_lag(query: dict[str, Any]) -> bool:
    """True for a list that need not be the newest: its version is that of a cache."""
    exact = query.get("resourceVersionMatch") == "Exact" or "limit" in query
    return "resourceVersion" in query and not exact


def _without_version(seen: Seen) -> Seen:
    for line in seen.body:
        line.get("metadata", {}).pop("resourceVersion", None)
    return seen


def _is_bookmark(line: dict[str, Any]) -> bool:
    """True for a bookmark that does not end initial events."""
    metadata = line.get("object", {}).get("metadata", {})
    return line.get("type") == "BOOKMARK" and "annotations" not in metadata


def _without_identity(seen: Seen) -> Seen:
    for line in seen.body:
        if line.get("kind") == "Event":
            for name in ("uid", "resourceVersion", "creationTimestamp", "managedFields"):
                line["metadata"].pop(name, None)
    return seen


def _place(resource: Resource, namespace: str = "") -> str:
    middle = f"/namespaces/{namespace}" if namespace and resource.namespaced else ""
    return f"{resource.prefix}{middle}/{resource.plural}"
