"""Requests to an API server from a client without any library."""

from __future__ import annotations

import contextlib
import http.client
import json
import ssl
from collections.abc import Iterator
from typing import Any, NamedTuple, Protocol
from urllib.parse import quote, urlencode

from bpfsvc.devtools.lab import objects
from bpfsvc.devtools.lab.patience import stretched

SERVICES = "/api/v1/services"
SLICES = "/apis/discovery.k8s.io/v1/endpointslices"
_PATIENCE = 10.0  # seconds for any answer


class Listening(Protocol):
    """A server on the loopback: the lab's, or a real one."""

    @property
    def port(self) -> int: ...


class Answer(NamedTuple):
    """A response."""

    status: int
    headers: dict[str, str]
    data: bytes

    @property
    def body(self) -> dict[str, Any]:
        body: dict[str, Any] = json.loads(self.data)
        return body

    def names(self) -> list[str]:
        return [item["metadata"]["name"] for item in self.body["items"]]


def path(target: str, **query: object) -> str:
    return target + "?" + urlencode(query, quote_via=quote) if query else target


def dial(server: Listening, tls: ssl.SSLContext | None = None) -> http.client.HTTPConnection:
    """Open a connection (at the first request)."""
    patience = stretched(_PATIENCE)
    if tls is not None:
        return http.client.HTTPSConnection("127.0.0.1", server.port, timeout=patience, context=tls)
    return http.client.HTTPConnection("127.0.0.1", server.port, timeout=patience)


def send(
    server: Listening,
    method: str,
    target: str,
    body: Any = None,
    headers: dict[str, str] | None = None,
    tls: ssl.SSLContext | None = None,
) -> Answer:
    """Send one request on a connection of its own."""
    with contextlib.closing(dial(server, tls)) as connection:
        data = None if body is None else json.dumps(body).encode()
        connection.request(method, target, data, headers or {})
        answer = connection.getresponse()
        lowered = {name.lower(): value for name, value in answer.getheaders()}
        return Answer(answer.status, lowered, answer.read())


def ask(server: Listening, target: str, **query: object) -> Answer:
    """Get a path with a query."""
    return send(server, "GET", path(target, **query))


class Stream:
    """A watch being read."""

    def __init__(
        self,
        server: Listening,
        target: str,
        *,
        headers: dict[str, str] | None = None,
        tls: ssl.SSLContext | None = None,
        **query: object,
    ) -> None:
        self._connection = dial(server, tls)
        url = path(target, watch="true", **query)
        self._connection.request("GET", url, headers=headers or {})
        self.answer = self._connection.getresponse()

    def line(self) -> bytes:
        """Return the next line; empty at the end."""
        return self.answer.readline()

    def event(self) -> dict[str, Any]:
        """Return the next event."""
        event: dict[str, Any] = json.loads(self.line())
        return event

    def summary(self) -> tuple[str, str, str]:
        """Return type, name and resourceVersion of the next event."""
        event = self.event()
        metadata = event["object"]["metadata"]
        return event["type"], metadata.get("name", ""), metadata["resourceVersion"]

    def close(self) -> None:
        self._connection.close()


@contextlib.contextmanager
def watching(server: Listening, target: str = SERVICES, **query: Any) -> Iterator[Stream]:
    """Watch a place; the connection is closed at the end."""
    stream = Stream(server, target, **query)
    try:
        yield stream
    finally:
        stream.close()


def service(name: str, cluster_ip: str = "10.96.0.1", **labels: str) -> dict[str, Any]:
    return objects.service(name, (), labels=labels, clusterIP=cluster_ip)
