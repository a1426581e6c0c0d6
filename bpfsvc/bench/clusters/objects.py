"""Clusters of any size: the Service that is measured, among many that are not.

``measured`` has a port for TCP and one for UDP, both of them node ports too, and one endpoint, so
that everything can be measured in a cluster of one Service, always between the same two ends. All
others are there to be many: a port each, and ``ENDPOINTS`` endpoints that nobody asks.

As files there is one for each object, as a controller that mirrors a cluster would keep them.
"""

from __future__ import annotations

import ipaddress
import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Literal, NamedTuple

Object = dict[str, Any]
Format = Literal["json", "yaml"]

ENDPOINTS = 4
"""Endpoints of each Service that only fills the cluster."""

NAME, MEASURED = "measured", "10.96.0.10"
PORT, NODE_PORT, FILLER_PORT = 80, 30080, 8080
PROTOCOLS = ("TCP", "UDP")
"""Of the measured Service, each with ``PORT`` and ``NODE_PORT``."""

_VIPS = ipaddress.ip_address("10.97.0.0")
_PODS = ipaddress.ip_address("10.244.16.0")
_NAMESPACE = "bench"


class Filler(NamedTuple):
    """A Service that only fills the cluster, TCP: its address, and those of its endpoints."""

    name: str
    address: str
    endpoints: tuple[str, ...]


def fillers(services: int) -> Iterator[Filler]:
    """Give what is beside the measured Service in a cluster of ``services`` Services."""
    for number in range(services - 1):
        first = _PODS + number * ENDPOINTS
        endpoints = tuple(str(first + offset) for offset in range(ENDPOINTS))
        yield Filler(f"filler-{number}", str(_VIPS + number), endpoints)


def measured(backend: str, port: int) -> tuple[Object, Object]:
    """Give the measured Service and its slice."""
    return service(NAME, MEASURED, PROTOCOLS, NODE_PORT), measured_slice(backend, port)


def measured_slice(backend: str, port: int) -> Object:
    """Give the slice of the measured Service, with one endpoint."""
    return endpoint_slice(NAME, [backend], port, PROTOCOLS)


def service(name: str, address: str, protocols: Sequence[str], node_port: int = 0) -> Object:
    """Give a Service with ``PORT`` for each protocol; a NodePort if ``node_port`` is given."""
    more = {"nodePort": node_port} if node_port else {}
    ports = [
        {"name": protocol.lower(), "protocol": protocol, "port": PORT, "targetPort": 8080} | more
        for protocol in protocols
    ]
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {"name": name, "namespace": _NAMESPACE, "labels": {"app": name}},
        "spec": {
            "type": "NodePort" if node_port else "ClusterIP",
            "clusterIP": address,
            "clusterIPs": [address],
            "ipFamilies": ["IPv4"],
            "ipFamilyPolicy": "SingleStack",
            "selector": {"app": name},
            "ports": ports,
        },
    }


def endpoint_slice(
    name: str, addresses: Sequence[str], port: int, protocols: Sequence[str]
) -> Object:
    """Give the EndpointSlice of a Service, its endpoints on two nodes in turn, node 2 first."""
    return {
        "apiVersion": "discovery.k8s.io/v1",
        "kind": "EndpointSlice",
        "metadata": {
            "name": f"{name}-x7k2p",
            "namespace": _NAMESPACE,
            "labels": {"kubernetes.io/service-name": name},
        },
        "addressType": "IPv4",
        "ports": [
            {"name": protocol.lower(), "port": port, "protocol": protocol} for protocol in protocols
        ],
        "endpoints": [
            {
                "addresses": [address],
                "nodeName": f"node-{2 - number % 2}",
                "conditions": {"ready": True, "serving": True, "terminating": False},
                "targetRef": {"kind": "Pod", "name": f"{name}-{number}", "namespace": _NAMESPACE},
            }
            for number, address in enumerate(addresses)
        ],
    }


def write_cluster(
    directory: Path, services: int, backend: str, port: int, text: Format = "json"
) -> None:
    """Write ``services`` Services, one of them the measured one, which ``backend`` serves."""
    directory.mkdir(parents=True, exist_ok=True)
    _write(directory, NAME, text, *measured(backend, port))
    for filler in fillers(services):
        _write(
            directory,
            filler.name,
            text,
            service(filler.name, filler.address, ["TCP"]),
            endpoint_slice(filler.name, filler.endpoints, FILLER_PORT, ["TCP"]),
        )


def slice_file(directory: Path, name: str, text: Format = "json") -> Path:
    """Give the place of a Service's EndpointSlice."""
    return directory / f"{name}-slice.{text}"


def as_text(value: Object, text: Format) -> str:
    """Give an object as a file's content."""
    return json.dumps(value) if text == "json" else "\n".join(_yaml(value)) + "\n"


def _write(directory: Path, name: str, text: Format, *pair: Object) -> None:
    (directory / f"{name}.{text}").write_text(as_text(pair[0], text))
    slice_file(directory, name, text).write_text(as_text(pair[1], text))


def _yaml(value: Object) -> list[str]:
    """Give block style, as kubectl prints it; enough for the objects above."""
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
