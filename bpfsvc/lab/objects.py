"""Kubernetes objects as plain dictionaries, in few words, and the text of a manifest.

JSON is YAML, so a manifest needs no library to be written: one line for each field of an object.
"""

from __future__ import annotations

import ipaddress
import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Protocol

Object = dict[str, Any]

SERVICE_NAME = "kubernetes.io/service-name"


class Place(Protocol):
    """What can be a backend: a pod, or a node for what listens on its own address."""

    addresses: dict[int, Any]


def manifest(objects: Iterable[Mapping[str, Any]]) -> str:
    """Give one YAML document for each object."""
    return "---\n".join(
        "".join(f"{field}: {json.dumps(value)}\n" for field, value in each.items())
        for each in objects
    )


def port(number: int, name: str = "", protocol: str = "TCP", **more: Any) -> Object:
    """Give an entry of ``spec.ports`` or of a slice's ``ports``."""
    return {"name": name, "port": number, "protocol": protocol, **more}


def service(
    name: str,
    addresses: Sequence[str],
    ports: Sequence[Object],
    namespace: str = "default",
    *,
    ingress: Sequence[str] = (),
    **spec: Any,
) -> Object:
    """Give a Service with these cluster IPs, one per family; ``ingress`` are load balancer IPs."""
    families = [f"IPv{ipaddress.ip_address(each).version}" for each in addresses]
    made: Object = {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {"name": name, "namespace": namespace},
        "spec": {
            "clusterIP": addresses[0],
            "clusterIPs": list(addresses),
            "ipFamilies": families,
            "type": "ClusterIP",
            "ports": list(ports),
            **spec,
        },
    }
    if ingress:
        made["status"] = {"loadBalancer": {"ingress": [{"ip": each} for each in ingress]}}
    return made


def node(name: str, addresses: Iterable[Any], zone: str = "") -> Object:
    """Give a Node; its first address of each family is its own."""
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {
            "name": name,
            "labels": {"topology.kubernetes.io/zone": zone} if zone else {},
        },
        "status": {
            "addresses": [{"type": "InternalIP", "address": str(each)} for each in addresses]
        },
    }


def slices(
    of: str, backends: Iterable[Place], ports: Sequence[Object], namespace: str = "default"
) -> list[Object]:
    """Give the EndpointSlices of a Service, one for each family that its backends have."""
    places = list(backends)
    families = sorted({family for place in places for family in place.addresses} or {4})
    return [
        {
            "apiVersion": "discovery.k8s.io/v1",
            "kind": "EndpointSlice",
            "metadata": {
                "name": f"{of}-ipv{family}",
                "namespace": namespace,
                "labels": {SERVICE_NAME: of},
            },
            "addressType": f"IPv{family}",
            "ports": list(ports),
            "endpoints": [endpoint(place, family) for place in places if family in place.addresses],
        }
        for family in families
    ]


def endpoint(place: Place, family: int, **conditions: bool) -> Object:
    """Give an entry of a slice's ``endpoints``; ready unless ``conditions`` say otherwise."""
    node: Any = getattr(place, "node", place)
    return {
        "addresses": [str(place.addresses[family])],
        "nodeName": node.name,
        "conditions": {"ready": True, **conditions},
    }
