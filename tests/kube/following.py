"""A source that is followed: the objects its batches add up to, and those of the server."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from typing import Any

from bpfsvc.devtools.lab import objects
from bpfsvc.devtools.lab.apiserver import ApiServer
from bpfsvc.devtools.lab.objects import service_cidr
from bpfsvc.devtools.lab.patience import wait
from bpfsvc.kube.apiserver import ApiServerSource as Source
from bpfsvc.kube.client.connection import ApiConnection, connect
from bpfsvc.kube.pacing import Backoff, Pacing
from bpfsvc.kube.source import Batch
from bpfsvc.model import ModelObject, ObjectKey, read_object

NODE = "here"
RESOURCES = 5
"""How many a source follows: Services, slices, networks, the Node and its pods."""

PROXY_NAME = "service.kubernetes.io/service-proxy-name"
HEADLESS = "service.kubernetes.io/headless"

BRISK = Pacing(backoff=partial(Backoff, 0.01, 0.1))
"""The real times, except after failures."""

ObjectMap = dict[ObjectKey, ModelObject]


class Following:
    """What a source has sent so far; a thread takes its batches."""

    def __init__(self, source: Source, stop: threading.Event) -> None:
        self.source = source
        self.batches: list[Batch] = []
        self.objects: ObjectMap = {}
        self._stop = stop
        self._thread = threading.Thread(target=self._run, name="following", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        self.source.follow(self._stop, self._put)

    def _put(self, batch: Batch) -> None:
        self.batches.append(batch)
        self.objects = applied(self.objects, batch)

    def wait_for(self, expected: ObjectMap) -> None:
        """Wait until the objects are as expected."""
        wait(lambda: self.objects == expected, "the objects of the source")

    def wait_synced(self, server: ApiServer) -> None:
        """Wait until the objects are those of the server."""
        wait(lambda: self.objects == held(server), "the objects of the source")

    def wait_connected(self) -> None:
        """Wait until all resources that are needed are connected."""

        def well() -> bool:
            return all(
                state.connected or state.optional for state in self.source.connections().values()
            )

        wait(well, "the connections")

    def wait_watching(self, server: ApiServer) -> None:
        """Wait until each resource has a watch, and each watch has told all objects there are.

        A watch that is lost before is begun again: no question is asked about it.
        """
        wait(lambda: len(server.watches) == RESOURCES, "the watches")
        wait(lambda: all(state.connected for state in self.source.connections().values()), "marks")

    def end(self) -> bool:
        """Stop it; return false if it does not end."""
        self._stop.set()
        self._thread.join(10)
        return not self._thread.is_alive()


def applied(before: ObjectMap, batch: Batch) -> ObjectMap:
    """Return the objects after a batch, as the agent applies it."""
    after = {
        key: item
        for key, item in before.items()
        if key not in batch.gone
        and (key.kind not in batch.listed or (key.namespace, key.name) in batch.listed[key.kind])
    }
    return after | {item.key: item for item in batch.puts}


def held(server: ApiServer, endpoints: str = "EndpointSlice") -> ObjectMap:
    """Return the objects of a server that a node must know."""
    objects_held: ObjectMap = {}
    for kind in ("Service", endpoints, "Node", "ServiceCIDR", "Pod"):
        for record in server.store.all(kind):
            if not _is_hidden(record.raw()):
                objects_held |= {item.key: item for item in read_object(record.raw())}
    return objects_held


def _is_hidden(raw: Mapping[str, Any]) -> bool:
    labels = raw["metadata"].get("labels", {})
    if raw["kind"] == "Service":
        return PROXY_NAME in labels or raw["spec"].get("clusterIP") == "None"
    if raw["kind"] == "Node":
        return bool(raw["metadata"]["name"] != NODE)
    if raw["kind"] == "Pod":
        return bool(raw["spec"].get("nodeName") != NODE)
    return HEADLESS in labels


def connection(server: ApiServer) -> ApiConnection:
    """Return a connection to a server without TLS."""
    return connect(None, server.url(), user_agent="test")


def status(made: ApiConnection) -> int:
    """Send a request; return the code of its answer."""
    answer = made.get("/api/v1/services")
    answer.body()
    answer.close()
    return answer.code


@contextmanager
def following(
    server: ApiServer, *, node_wait: float = 30.0, pacing: Pacing = BRISK
) -> Iterator[Following]:
    """Follow a server for the length of a block."""
    source = Source(connection(server), NODE, node_wait=node_wait, pacing=pacing)
    made = Following(source, threading.Event())
    try:
        yield made
    finally:
        assert made.end(), "the source did not end when it was stopped"


# -- objects --


def put_cluster(server: ApiServer, services: int = 3) -> None:
    """Put this node, one of each kind that is followed, and some that must be left out."""
    server.put(node())
    server.put(node("there"))
    server.put(service_cidr("10.96.0.0/12"))
    for number in range(services):
        server.put(service(f"web-{number}"))
        server.put(endpoint_slice(f"web-{number}"))
    server.put(service("headless", clusterIP="None"))
    server.put(endpoint_slice("headless", labels={HEADLESS: ""}))
    server.put(service("others", labels={PROXY_NAME: ""}))


def service(name: str = "web", *, labels: Mapping[str, str] | None = None, **spec: Any) -> Any:
    return objects.service(name, (), labels=labels, **({"clusterIP": "10.96.0.1"} | spec))


def endpoint_slice(
    of: str = "web",
    *addresses: str,
    labels: Mapping[str, str] | None = None,
    trigger: str | None = None,
) -> Any:
    return objects.endpoint_slice(
        of,
        [objects.endpoint(address) for address in addresses or ("10.0.0.1",)],
        name=f"{of}-abcde",
        labels=labels,
        annotations=(
            {"endpoints.kubernetes.io/last-change-trigger-time": trigger} if trigger else {}
        ),
    )


def node(name: str = NODE, *addresses: str) -> Any:
    return objects.node(name, addresses or ("192.0.2.1",))


def pod(name: str, *addresses: str, on: str = NODE, opted_out: bool = False) -> Any:
    annotations = {"bpfsvc.io/socket-lb": "off"} if opted_out else {}
    return objects.pod(name, addresses, on, annotations=annotations)
