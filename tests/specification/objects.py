"""Which Services count, and their addresses and ports (sections 1.1 to 1.3)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple, TypeAlias

from tests.specification.addresses import Address, Network, parse_address, parse_network

Raw: TypeAlias = Mapping[str, Any]
"""An object as Kubernetes prints it, a case of the sample, or a part of either."""

FAMILY_NAMES = {4: "IPv4", 6: "IPv6"}


class ServicePort(NamedTuple):
    """Section 1.2: one entry of ``spec.ports`` in one family that has a cluster IP."""

    service: Raw
    entry: Raw
    family: int
    cluster_ip: Address

    @property
    def identity(self) -> tuple[str, str, str, str, int]:
        """Section 1.2: namespace, name, port name, protocol; each family is apart."""
        namespace, name = service_key(self.service)
        return namespace, name, self.name, self.protocol, self.family

    @property
    def name(self) -> str:
        """Section 1.2: the port name may be empty."""
        return self.entry.get("name") or ""

    @property
    def protocol(self) -> str:
        """Section 1.4: the API server defaults it to TCP."""
        return self.entry.get("protocol") or "TCP"

    @property
    def number(self) -> int:
        """``spec.ports[].port``."""
        return int(self.entry["port"])

    @property
    def node_port(self) -> int:
        """Section 1.2: 0 is none; a number counts whatever the type."""
        return self.entry.get("nodePort") or 0


def service_key(service: Raw) -> tuple[str, str]:
    """Namespace and name."""
    metadata = service["metadata"]
    return metadata.get("namespace") or "", metadata["name"]


def labels(thing: Raw) -> Raw:
    """``metadata.labels``, empty when missing."""
    return thing["metadata"].get("labels") or {}


def is_watched(service: Raw) -> bool:
    """Section 1.1: the label excludes by being there, whatever its value."""
    is_headless = service["spec"].get("clusterIP") == "None"
    return "service.kubernetes.io/service-proxy-name" not in labels(service) and not is_headless


def is_skipped(service: Raw) -> bool:
    """Section 1.2: no cluster IP at all, or ExternalName even with a stale one."""
    spec = service["spec"]
    return spec.get("clusterIP") in (None, "", "None") or spec.get("type") == "ExternalName"


def services(case: Raw) -> list[Raw]:
    """Sections 1.1 and 1.2: the Services that count, by namespace and name."""
    counted = [one for one in case["services"] if is_watched(one) and not is_skipped(one)]
    return sorted(counted, key=service_key)


def cluster_ip(service: Raw, family: int) -> Address | None:
    """Section 1.2: ``clusterIPs[i]`` where ``ipFamilies[i]`` is it; else the lone ``clusterIP``."""
    spec = service["spec"]
    if not spec.get("ipFamilies"):
        address = parse_address(spec["clusterIP"])
        return address if address and address.version == family else None
    for name, text in zip(spec["ipFamilies"], spec.get("clusterIPs") or [], strict=False):
        if name == FAMILY_NAMES[family]:
            return parse_address(text)
    return None


def service_ports(case: Raw) -> Iterator[ServicePort]:
    """Section 1.2: without a cluster IP of a family there is nothing at all in that family."""
    for service in services(case):
        for family in FAMILY_NAMES:
            address = cluster_ip(service, family)
            if address is not None:
                for entry in service["spec"].get("ports") or []:
                    yield ServicePort(service, entry, family, address)


def external_ips(port: ServicePort) -> list[Address]:
    """Section 1.3: those of the family; what is not an address is skipped."""
    return _of_family(port.service["spec"].get("externalIPs") or [], port.family)


def load_balancer_ips(port: ServicePort) -> list[Address]:
    """Section 1.3: ingress addresses of the family whose ``ipMode`` is unset or VIP."""
    balancer = (port.service.get("status") or {}).get("loadBalancer") or {}
    texts = [
        ingress["ip"]
        for ingress in balancer.get("ingress") or []
        if ingress.get("ip") and ingress.get("ipMode") in (None, "VIP")
    ]
    return _of_family(texts, port.family)


def source_ranges(port: ServicePort) -> list[Network]:
    """Section 1.3: those of the family, trimmed; a ``/0`` among them empties the list."""
    texts = port.service["spec"].get("loadBalancerSourceRanges") or []
    parsed = [parse_network(text.strip()) for text in texts]
    ranges = [one for one in parsed if one and one.version == port.family]
    return [] if any(one.prefixlen == 0 for one in ranges) else ranges


def is_externally_accessible(port: ServicePort) -> bool:
    """Section 3.3; section 1.3: external IPs count even when their gate is off."""
    return bool(port.node_port or load_balancer_ips(port) or external_ips(port))


def is_internal_local(port: ServicePort) -> bool:
    """``internalTrafficPolicy: Local``."""
    return bool(port.service["spec"].get("internalTrafficPolicy") == "Local")


def is_external_local(port: ServicePort) -> bool:
    """Section 3.6: ``externalTrafficPolicy: Local``, where the type lets it count."""
    spec = port.service["spec"]
    kind = spec.get("type") or "ClusterIP"
    counts = kind in ("NodePort", "LoadBalancer") or (
        kind == "ClusterIP" and bool(spec.get("externalIPs"))
    )
    return counts and spec.get("externalTrafficPolicy") == "Local"


def _of_family(texts: list[str], family: int) -> list[Address]:
    parsed = [parse_address(text) for text in texts]
    return [one for one in parsed if one and one.version == family]
