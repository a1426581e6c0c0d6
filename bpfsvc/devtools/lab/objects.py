"""Kubernetes objects as plain dictionaries: one builder for each kind.

Tests, the demo and the benchmark all write their objects with it. Each function returns the object
as the API server would print it, with defaults that suit most callers; keyword arguments replace
or add fields of ``spec``. A manifest is JSON by field, which is YAML too, so writing one needs no
library.
"""

from __future__ import annotations

import ipaddress
import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Protocol

Object = dict[str, Any]

SERVICE_NAME = "kubernetes.io/service-name"
ZONE = "topology.kubernetes.io/zone"


class Host(Protocol):
    """A possible backend: a pod, or a node for a server on the node's own address."""

    name: str
    addresses: dict[int, Any]


def manifest(objects: Iterable[Mapping[str, Any]]) -> str:
    """Return one YAML document for each object."""
    return "---\n".join(
        "".join(f"{field}: {json.dumps(value)}\n" for field, value in item.items())
        for item in objects
    )


def port(number: int, name: str = "", protocol: str = "TCP", **more: Any) -> Object:
    """Return an entry of ``spec.ports`` of a Service, or of ``ports`` of an EndpointSlice."""
    return {"name": name, "port": number, "protocol": protocol, **more}


HTTP = port(80, "http")
HTTP_TARGET = port(8080, "http")


def service(
    name: str = "web",
    addresses: Sequence[str] = ("10.96.0.1",),
    ports: Sequence[Mapping[str, Any]] = (HTTP,),
    namespace: str = "default",
    *,
    labels: Mapping[str, str] | None = None,
    annotations: Mapping[str, str] | None = None,
    ingress: Sequence[str | Mapping[str, Any]] = (),
    created: str = "",
    **spec: Any,
) -> Object:
    """Return a Service with these cluster IPs, at most one of each family.

    Without ``addresses``, ``spec`` has all fields of cluster IPs. ``ingress`` are
    addresses of load balancers, or whole entries of ``status``. ``created``: its timestamp.
    """
    metadata = _metadata(name, namespace, labels, annotations)
    if created:
        metadata["creationTimestamp"] = created
    cluster_ips: Object = {}
    if addresses:
        cluster_ips = {
            "clusterIP": addresses[0],
            "clusterIPs": list(addresses),
            "ipFamilies": [_family(address) for address in addresses],
        }
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": metadata,
        "spec": {
            "type": "ClusterIP",
            **cluster_ips,
            "ports": [dict(entry) for entry in ports],
            **spec,
        },
        "status": {
            "loadBalancer": {
                "ingress": [
                    {"ip": address} if isinstance(address, str) else address for address in ingress
                ]
            }
        },
    }


def endpoint_slice(
    of: str,
    endpoints: Sequence[Object],
    ports: Sequence[Mapping[str, Any]] = (HTTP_TARGET,),
    namespace: str = "default",
    *,
    name: str = "",
    labels: Mapping[str, str] | None = None,
    annotations: Mapping[str, str] | None = None,
) -> Object:
    """Return an EndpointSlice of the Service ``of``; its first endpoint decides the family."""
    first = endpoints[0]["addresses"][0] if endpoints else "0.0.0.0"
    return {
        "apiVersion": "discovery.k8s.io/v1",
        "kind": "EndpointSlice",
        "metadata": _metadata(
            name or f"{of}-1", namespace, {SERVICE_NAME: of, **(labels or {})}, annotations
        ),
        "addressType": _family(first),
        "ports": [dict(entry) for entry in ports],
        "endpoints": list(endpoints),
    }


def endpoint(address: str, node: str = "", *, ready: bool = True, **conditions: bool) -> Object:
    """Return an entry of ``endpoints`` of an EndpointSlice; an empty ``node`` names none."""
    made: Object = {"addresses": [address], "conditions": {"ready": ready, **conditions}}
    if node:
        made["nodeName"] = node
    return made


def endpoint_of(host: Host, family: int, **conditions: bool) -> Object:
    """Return the endpoint for a pod or node of a lab, at its address of family 4 or 6."""
    node: Any = getattr(host, "node", host)
    made = endpoint(str(host.addresses[family]), node.name, **conditions)
    if node is not host:
        made["targetRef"] = {"kind": "Pod", "namespace": "default", "name": host.name}
    return made


def slices(
    of: str,
    backends: Iterable[Host],
    ports: Sequence[Mapping[str, Any]],
    namespace: str = "default",
) -> list[Object]:
    """Return the EndpointSlices of a Service, one for each family that its backends have."""
    hosts = list(backends)
    families = sorted({family for host in hosts for family in host.addresses} or {4})
    return [
        {
            **endpoint_slice(
                of,
                [endpoint_of(host, family) for host in hosts if family in host.addresses],
                ports,
                namespace,
                name=f"{of}-ipv{family}",
            ),
            "addressType": f"IPv{family}",
        }
        for family in families
    ]


def endpoints(name: str, *subsets: Sequence[str], namespace: str = "default") -> Object:
    """Return a classic Endpoints object, a subset for each group of addresses.

    The port of the first subset is 8080, of the next 8081, and so on.
    """
    return {
        "apiVersion": "v1",
        "kind": "Endpoints",
        "metadata": {"name": name, "namespace": namespace},
        "subsets": [
            {
                "addresses": [{"ip": address} for address in group],
                "ports": [port(8080 + number, "http")],
            }
            for number, group in enumerate(subsets)
        ],
    }


def node(
    name: str, addresses: Iterable[Any], zone: str = "", *, pod_cidrs: Iterable[Any] = ()
) -> Object:
    """Return a Node with these internal addresses and ranges of pods."""
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {"name": name, "labels": {ZONE: zone} if zone else {}},
        "spec": {"podCIDRs": [str(cidr) for cidr in pod_cidrs]},
        "status": {
            "addresses": [{"type": "InternalIP", "address": str(address)} for address in addresses]
        },
    }


def pod(
    name: str,
    addresses: Iterable[str],
    node: str,
    namespace: str = "default",
    *,
    annotations: Mapping[str, str] | None = None,
) -> Object:
    """Return a Pod on a node."""
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": _metadata(name, namespace, None, annotations),
        "spec": {"nodeName": node, "containers": []},
        "status": {"podIPs": [{"ip": address} for address in addresses]},
    }


def service_cidr(*cidrs: str, name: str = "kubernetes") -> Object:
    """Return a ServiceCIDR."""
    return {
        "apiVersion": "networking.k8s.io/v1",
        "kind": "ServiceCIDR",
        "metadata": {"name": name},
        "spec": {"cidrs": list(cidrs)},
    }


def _metadata(
    name: str,
    namespace: str,
    labels: Mapping[str, str] | None = None,
    annotations: Mapping[str, str] | None = None,
) -> Object:
    """Return ``metadata``; as in the API's answers, empty labels and annotations are left out."""
    made: Object = {"name": name, "namespace": namespace}
    if labels:
        made["labels"] = dict(labels)
    if annotations:
        made["annotations"] = dict(annotations)
    return made


def _family(address: str) -> str:
    return f"IPv{ipaddress.ip_address(address).version}"
