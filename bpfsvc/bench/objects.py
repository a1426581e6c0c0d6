"""Clusters of any size as files: the Services that are measured among many that are not.

One file for each object, as a controller that mirrors a cluster would keep them. Two Services are
special: ``measured`` (TCP, one endpoint) and ``moving`` (UDP), whose endpoint the ``change`` suite
changes.
"""

from __future__ import annotations

import ipaddress
import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Literal

Object = dict[str, Any]
Format = Literal["json", "yaml"]

ENDPOINTS = 4
"""Endpoints of each Service that only fills the cluster."""

MEASURED, MOVING = "10.96.0.10", "10.96.0.11"
PORT, NODE_PORT = 80, 30080

_SPECIAL = (("measured", MEASURED, "TCP", NODE_PORT), ("moving", MOVING, "UDP", 0))
SPECIALS = len(_SPECIAL)

_VIPS = ipaddress.ip_address("10.97.0.0")
_PODS = ipaddress.ip_address("10.244.16.0")
_NAMESPACE = "bench"


def service(name: str, address: str, protocol: str, node_port: int = 0) -> Object:
    """Give a Service with one port; a NodePort if ``node_port`` is given."""
    port: Object = {"name": "main", "protocol": protocol, "port": PORT, "targetPort": 8080}
    if node_port:
        port["nodePort"] = node_port
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
            "ports": [port],
        },
    }


def endpoint_slice(name: str, addresses: Sequence[str], port: int, protocol: str) -> Object:
    """Give the EndpointSlice of a Service, its endpoints on two nodes in turn."""
    return {
        "apiVersion": "discovery.k8s.io/v1",
        "kind": "EndpointSlice",
        "metadata": {
            "name": f"{name}-x7k2p",
            "namespace": _NAMESPACE,
            "labels": {"kubernetes.io/service-name": name},
        },
        "addressType": "IPv4",
        "ports": [{"name": "main", "port": port, "protocol": protocol}],
        "endpoints": [
            {
                "addresses": [address],
                "nodeName": f"node-{number % 2 + 1}",
                "conditions": {"ready": True, "serving": True, "terminating": False},
                "targetRef": {"kind": "Pod", "name": f"{name}-{number}", "namespace": _NAMESPACE},
            }
            for number, address in enumerate(addresses)
        ],
    }


def special(backend: str, port: int) -> Iterator[tuple[Object, Object]]:
    """Give the special Services, each with its slice."""
    for name, address, protocol, node_port in _SPECIAL:
        yield (
            service(name, address, protocol, node_port),
            endpoint_slice(name, [backend], port, protocol),
        )


def write_cluster(
    directory: Path, services: int, backend: str, port: int, text: Format = "json"
) -> None:
    """Write ``services`` Services, two of them the special ones, which ``backend`` serves."""
    directory.mkdir(parents=True, exist_ok=True)
    for pair in special(backend, port):
        _write(directory, pair[0]["metadata"]["name"], text, *pair)
    for number in range(services - SPECIALS):
        name = f"filler-{number}"
        first = _PODS + number * ENDPOINTS
        pods = [str(first + offset) for offset in range(ENDPOINTS)]
        _write(
            directory,
            name,
            text,
            service(name, str(_VIPS + number), "TCP"),
            endpoint_slice(name, pods, 8080, "TCP"),
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
