"""A source that is followed: what its batches add up to, and what they should."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from typing import Any

from bpfsvc.apiserver.backoff import Backoff
from bpfsvc.apiserver.connection import Connection, connect
from bpfsvc.apiserver.pacing import Pacing
from bpfsvc.apiserver.source import ApiServer as Source
from bpfsvc.lab.apiserver import ApiServer
from bpfsvc.lab.patience import wait
from bpfsvc.model import ModelObject, ObjectKey, read_object
from bpfsvc.sources import Batch

NODE = "here"
RESOURCES = 5
"""That a source follows: Services, slices, networks, the Node and its pods."""

PROXY_NAME = "service.kubernetes.io/service-proxy-name"
HEADLESS = "service.kubernetes.io/headless"

BRISK = Pacing(backoff=partial(Backoff, 0.01, 0.1))
"""The real times, but for those after failures."""

Picture = dict[ObjectKey, ModelObject]


class Following:
    """What a source has told so far; its batches are taken by a thread."""

    def __init__(self, source: Source, stop: threading.Event) -> None:
        self.source = source
        self.batches: list[Batch] = []
        self.picture: Picture = {}
        self._stop = stop
        self._thread = threading.Thread(target=self._run, name="following", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        for batch in self.source.watch(self._stop):
            self.batches.append(batch)
            self.picture = applied(self.picture, batch)

    def wait_for(self, expected: Picture) -> None:
        """Wait until the picture is as expected."""
        wait(lambda: self.picture == expected, "the picture of the source")

    def wait_in_step(self, server: ApiServer) -> None:
        """Wait until the picture is what the server holds."""
        wait(lambda: self.picture == held(server), "the picture of the source")

    def wait_connected(self) -> None:
        """Wait until there is contact over all resources that are needed."""

        def well() -> bool:
            return all(each.connected or each.optional for each in self.source.contacts().values())

        wait(well, "contact")

    def end(self) -> bool:
        """End it; tell whether it did."""
        self._stop.set()
        self._thread.join(10)
        return not self._thread.is_alive()


def applied(picture: Picture, batch: Batch) -> Picture:
    """Give the picture after a batch, as the agent takes it in."""
    after = {
        key: each
        for key, each in picture.items()
        if key not in batch.gone
        and (key.kind not in batch.whole or (key.namespace, key.name) in batch.whole[key.kind])
    }
    return after | {each.key: each for each in batch.puts}


def held(server: ApiServer, endpoints: str = "EndpointSlice") -> Picture:
    """Give what a node must know of all that a server holds."""
    found: Picture = {}
    for kind in ("Service", endpoints, "Node", "ServiceCIDR", "Pod"):
        for record in server.store.all(kind):
            if not _is_hidden(record.raw()):
                found |= {each.key: each for each in read_object(record.raw())}
    return found


def _is_hidden(raw: Mapping[str, Any]) -> bool:
    labels = raw["metadata"].get("labels", {})
    if raw["kind"] == "Service":
        return PROXY_NAME in labels or raw["spec"].get("clusterIP") == "None"
    if raw["kind"] == "Node":
        return bool(raw["metadata"]["name"] != NODE)
    if raw["kind"] == "Pod":
        return bool(raw["spec"].get("nodeName") != NODE)
    return HEADLESS in labels


def connection(server: ApiServer) -> Connection:
    """Prepare to talk with a plain server."""
    return connect(None, server.url(), user_agent="test")


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
        assert made.end(), "the source did not end when it was told to"


# -- objects --


def put_cluster(server: ApiServer, services: int = 3) -> None:
    """Put this node, one of each kind that is followed, and some that must not be seen."""
    server.put(node())
    server.put(node("there"))
    server.put(cidr("10.96.0.0/12"))
    for number in range(services):
        server.put(service(f"web-{number}"))
        server.put(endpoint_slice(f"web-{number}"))
    server.put(service("headless", clusterIP="None"))
    server.put(endpoint_slice("headless", labels={HEADLESS: ""}))
    server.put(service("others", labels={PROXY_NAME: ""}))


def service(name: str = "web", *, labels: Mapping[str, str] | None = None, **spec: Any) -> Any:
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {"name": name, "namespace": "default", "labels": dict(labels or {})},
        "spec": {"clusterIP": "10.96.0.1", "ports": [{"name": "http", "port": 80}], **spec},
    }


def endpoint_slice(
    of: str = "web",
    *addresses: str,
    labels: Mapping[str, str] | None = None,
    trigger: str | None = None,
) -> Any:
    return {
        "apiVersion": "discovery.k8s.io/v1",
        "kind": "EndpointSlice",
        "metadata": {
            "name": f"{of}-abcde",
            "namespace": "default",
            "labels": {"kubernetes.io/service-name": of, **(labels or {})},
            "annotations": (
                {"endpoints.kubernetes.io/last-change-trigger-time": trigger} if trigger else {}
            ),
        },
        "addressType": "IPv4",
        "endpoints": [{"addresses": [each]} for each in addresses or ("10.0.0.1",)],
        "ports": [{"name": "http", "port": 8080, "protocol": "TCP"}],
    }


def endpoints(name: str, *subsets: tuple[str, ...]) -> Any:
    """Write a classic object with a subset for each tuple of addresses."""
    return {
        "apiVersion": "v1",
        "kind": "Endpoints",
        "metadata": {"name": name, "namespace": "default"},
        "subsets": [
            {
                "addresses": [{"ip": each} for each in some],
                "ports": [{"name": "http", "port": 8080 + number}],
            }
            for number, some in enumerate(subsets)
        ],
    }


def node(name: str = NODE, *addresses: str) -> Any:
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {"name": name},
        "status": {
            "addresses": [
                {"type": "InternalIP", "address": each} for each in addresses or ("192.0.2.1",)
            ]
        },
    }


def pod(name: str, *addresses: str, on: str = NODE, opted_out: bool = False) -> Any:
    notes = {"bpfsvc.io/socket-lb": "off"} if opted_out else {}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "namespace": "default", "annotations": notes},
        "spec": {"nodeName": on, "containers": []},
        "status": {"podIPs": [{"ip": each} for each in addresses]},
    }


def cidr(*cidrs: str, name: str = "kubernetes") -> Any:
    return {
        "apiVersion": "networking.k8s.io/v1",
        "kind": "ServiceCIDR",
        "metadata": {"name": name},
        "spec": {"cidrs": list(cidrs)},
    }
