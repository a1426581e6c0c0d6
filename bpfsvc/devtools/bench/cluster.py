"""Clusters of any size: the Service that is measured, among many that only fill the cluster.

``measured`` has a port for TCP and one for UDP, both with a NodePort, and one endpoint, so that
everything can be measured in a cluster of one Service, always between the same two ends. Each
other Service has one port and ``ENDPOINTS`` endpoints that no client asks.

As files there is one per object, as a controller that mirrors a cluster would keep them.
"""

from __future__ import annotations

import ipaddress
import json
from collections.abc import Iterator, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, Literal, NamedTuple

from bpfsvc.devtools.bench.baselines import BaselineService
from bpfsvc.devtools.lab import objects

Object = dict[str, Any]
Format = Literal["json", "yaml"]

ENDPOINTS = 4
"""Endpoints of each Service that only fills the cluster."""

NAME, MEASURED = "measured", "10.96.0.10"
PORT, NODE_PORT, FILLER_PORT = 80, 30080, 8080
PROTOCOLS = ("TCP", "UDP")
"""Of the measured Service, each with ``PORT`` and ``NODE_PORT``."""

_CLUSTER_IPS = ipaddress.ip_address("10.97.0.0")
_PODS = ipaddress.ip_address("10.244.16.0")
_NAMESPACE = "bench"


class Filler(NamedTuple):
    """A Service of TCP that only fills the cluster: its address and its endpoints' addresses."""

    name: str
    address: str
    endpoints: tuple[str, ...]


def fillers(services: int) -> Iterator[Filler]:
    """Return the Services beside the measured one in a cluster of ``services`` Services."""
    for number in range(services - 1):
        first = _PODS + number * ENDPOINTS
        endpoints = tuple(str(first + offset) for offset in range(ENDPOINTS))
        yield Filler(f"filler-{number}", str(_CLUSTER_IPS + number), endpoints)


def measured(backend: str, port: int) -> tuple[Object, Object]:
    """Return the measured Service and its EndpointSlice."""
    return _service(NAME, MEASURED, PROTOCOLS, NODE_PORT), measured_slice(backend, port)


def measured_slice(backend: str, port: int) -> Object:
    """Return the EndpointSlice of the measured Service, with one endpoint."""
    return _slice(NAME, [backend], port, PROTOCOLS)


class BenchCluster:
    """A cluster of ``services`` Services in each form that a mode needs; made when asked for.

    ``directory``: for its files alone. ``backend`` and ``port``: where the measured Service is
    served.
    """

    def __init__(self, services: int, directory: Path, backend: str, port: int) -> None:
        self.services, self.directory = services, directory
        self._backend = (backend, port)

    def manifests(self) -> Path:
        """Return a directory with a file for each object."""
        directory = self.directory / "manifests"
        if not directory.exists():
            write_cluster(directory, self.services, *self._backend)
        return directory

    @cached_property
    def ports(self) -> Sequence[BaselineService]:
        """Return all ports for a baseline, the ports of the measured Service in the middle.

        Where a mode tries its rules one after the other, this is the average cost of a Service.
        """
        others = [
            BaselineService(
                f"{_NAMESPACE}/{filler.name}:tcp",
                filler.address,
                PORT,
                backends=tuple((address, FILLER_PORT) for address in filler.endpoints),
            )
            for filler in fillers(self.services)
        ]
        middle = len(others) // 2
        name = f"{_NAMESPACE}/{NAME}"
        others[middle:middle] = [
            BaselineService(f"{name}:{kind}", MEASURED, PORT, kind, NODE_PORT, (self._backend,))
            for kind in ("tcp", "udp")
        ]
        return others


def write_cluster(
    directory: Path, services: int, backend: str, port: int, text: Format = "json"
) -> None:
    """Write ``services`` Services, one of them the measured one, which ``backend`` serves."""
    directory.mkdir(parents=True, exist_ok=True)
    _write(directory, NAME, text, *measured(backend, port))
    for filler in fillers(services):
        made = _service(filler.name, filler.address, ["TCP"])
        its_slice = _slice(filler.name, filler.endpoints, FILLER_PORT, ["TCP"])
        _write(directory, filler.name, text, made, its_slice)


def slice_file(directory: Path, name: str, text: Format = "json") -> Path:
    """Return the file of a Service's EndpointSlice."""
    return directory / f"{name}-slice.{text}"


def as_text(value: Object, text: Format) -> str:
    """Return an object as a file's content."""
    return json.dumps(value) if text == "json" else "\n".join(_yaml(value)) + "\n"


def _service(name: str, address: str, protocols: Sequence[str], node_port: int = 0) -> Object:
    more = {"nodePort": node_port} if node_port else {}
    made = objects.service(
        name,
        [address],
        [
            objects.port(PORT, protocol.lower(), protocol, targetPort=8080, **more)
            for protocol in protocols
        ],
        _NAMESPACE,
        labels={"app": name},
        type="NodePort" if node_port else "ClusterIP",
        ipFamilyPolicy="SingleStack",
        selector={"app": name},
    )
    del made["status"]
    return made


def _slice(name: str, addresses: Sequence[str], port: int, protocols: Sequence[str]) -> Object:
    """Return the EndpointSlice of a Service, its endpoints on two nodes in turn, node 2 first."""
    endpoints = [
        objects.endpoint(address, f"node-{2 - number % 2}", serving=True, terminating=False)
        | {"targetRef": {"kind": "Pod", "name": f"{name}-{number}", "namespace": _NAMESPACE}}
        for number, address in enumerate(addresses)
    ]
    ports = [objects.port(port, protocol.lower(), protocol) for protocol in protocols]
    return objects.endpoint_slice(name, endpoints, ports, _NAMESPACE, name=f"{name}-x7k2p")


def _write(directory: Path, name: str, text: Format, *pair: Object) -> None:
    (directory / f"{name}.{text}").write_text(as_text(pair[0], text))
    slice_file(directory, name, text).write_text(as_text(pair[1], text))


def _yaml(value: Object) -> list[str]:
    """Return block style, as kubectl prints it; enough for the objects above.

    PyYAML in Python takes a millisecond per object.
    """
    lines: list[str] = []
    for key, item in value.items():
        if isinstance(item, dict):
            lines += [f"{key}:", *("  " + line for line in _yaml(item))]
        elif isinstance(item, list):
            lines.append(f"{key}:")
            for element in item:
                inner = _yaml(element) if isinstance(element, dict) else [json.dumps(element)]
                lines += ["- " + inner[0], *("  " + line for line in inner[1:])]
        else:
            lines.append(f"{key}: {item if isinstance(item, str) else json.dumps(item)}")
    return lines
