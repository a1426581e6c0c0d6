"""Questions to an API server as a client without any library would put them."""

from __future__ import annotations

import contextlib
import http.client
import json
import ssl
from collections.abc import Iterator
from typing import Any, NamedTuple
from urllib.parse import quote, urlencode

from bpfsvc.lab.apiserver import ApiServer
from bpfsvc.lab.patience import stretched

SERVICES = "/api/v1/services"
SLICES = "/apis/discovery.k8s.io/v1/endpointslices"
_PATIENCE = 10.0  # seconds for any answer


class Answer(NamedTuple):
    """What came back."""

    status: int
    headers: dict[str, str]
    data: bytes

    @property
    def body(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(self.data)
        return found

    def names(self) -> list[str]:
        return [item["metadata"]["name"] for item in self.body["items"]]


def path(place: str, **query: object) -> str:
    return place + "?" + urlencode(query, quote_via=quote) if query else place


def dial(server: ApiServer, tls: ssl.SSLContext | None = None) -> http.client.HTTPConnection:
    """Open a connection (at the first request)."""
    patience = stretched(_PATIENCE)
    if tls is not None:
        return http.client.HTTPSConnection("127.0.0.1", server.port, timeout=patience, context=tls)
    return http.client.HTTPConnection("127.0.0.1", server.port, timeout=patience)


def send(
    server: ApiServer,
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


def ask(server: ApiServer, place: str, **query: object) -> Answer:
    """Get a path with a query."""
    return send(server, "GET", path(place, **query))


class Stream:
    """A watch being read."""

    def __init__(self, server: ApiServer, place: str, **query: object) -> None:
        self._connection = dial(server)
        self._connection.request("GET", path(place, watch="true", **query))
        self.answer = self._connection.getresponse()

    def line(self) -> bytes:
        """Give the next line; nothing at the end."""
        return self.answer.readline()

    def event(self) -> dict[str, Any]:
        """Give the next event."""
        found: dict[str, Any] = json.loads(self.line())
        return found

    def told(self) -> tuple[str, str, str]:
        """Give type, name and resourceVersion of the next event."""
        event = self.event()
        metadata = event["object"]["metadata"]
        return event["type"], metadata.get("name", ""), metadata["resourceVersion"]

    def close(self) -> None:
        self._connection.close()


@contextlib.contextmanager
def watching(server: ApiServer, place: str = SERVICES, **query: object) -> Iterator[Stream]:
    """Watch a place; the connection is closed at the end."""
    stream = Stream(server, place, **query)
    try:
        yield stream
    finally:
        stream.close()


def service(name: str, cluster_ip: str = "10.96.0.1", **labels: str) -> dict[str, Any]:
    metadata: dict[str, Any] = {"name": name, "namespace": "default"}
    if labels:
        metadata["labels"] = labels
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": metadata,
        "spec": {"clusterIP": cluster_ip},
    }
