"""The node and the objects that a question is asked about: from manifests, or from a case."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bpfsvc.base.address import pack, pack_network
from bpfsvc.base.errors import BpfsvcError
from bpfsvc.config.config import Config
from bpfsvc.config.local_detector import LocalDetector
from bpfsvc.datapath.netlink.devices import addresses
from bpfsvc.datapath.netlink.network import read_network
from bpfsvc.explain.question import Case
from bpfsvc.kube.manifests.directory import ManifestSource
from bpfsvc.model import Node, PodPlace, Service, ServiceCIDR, read_object
from bpfsvc.services.cache import Cache
from bpfsvc.services.rules.context import NodeContext, ServiceConfig
from bpfsvc.services.rules.nodeport_addresses import NodePortAddresses, resolve


@dataclass(frozen=True, slots=True, kw_only=True)
class QuestionContext:
    """The node that a question is asked about, and how its agent is configured.

    * ``addresses``: all addresses of the node, packed, without those of loopback.
    * ``node_ports``: the addresses at which NodePorts are served.
    """

    node: Node
    detection: LocalDetector
    config: ServiceConfig
    addresses: tuple[bytes, ...]
    node_ports: NodePortAddresses

    @property
    def context(self) -> NodeContext:
        """What endpoints and clients are compared with."""
        return node_context(self.node)


def node_context(node: Node) -> NodeContext:
    """Return what endpoints and clients are compared with."""
    return NodeContext(node.name, node.zone, node.addresses)


# -- manifests -------------------------------------------------------------------------------------


def read_manifests(directory: Path, node_name: str) -> Cache:
    """Return the objects of a directory; raise :class:`BpfsvcError` if a file cannot be used."""
    cache = Cache(node_name)
    batch = ManifestSource(directory).read()
    if batch.problems:
        raise BpfsvcError(
            "; ".join(map(str, batch.problems)),
            "fix the file, or leave out --manifests to ask about the running agent",
        )
    cache.apply(batch.puts, batch.gone)
    return cache


class ManifestObjects:
    """The objects of a directory, by their names."""

    def __init__(self, directory: Path, cache: Cache) -> None:
        self._directory = directory
        self._cache = cache

    @property
    def node_name(self) -> str:
        """The node that is asked about."""
        return self._cache.node.name

    def service(self, namespace: str, name: str) -> Service | None:
        """Return a Service, None if there is none."""
        return self._cache.lookup((namespace, name)).service

    def pod(self, namespace: str, name: str) -> PodPlace | None:
        """Return where a Pod is, None if there is none."""
        return ManifestSource(self._directory).find_pod(namespace, name)


def context_of(node: Node, config: Config, *, is_this_machine: bool) -> QuestionContext:
    """Return the context of a Node object; on this machine its interfaces' addresses count too."""
    own = _own_addresses() if is_this_machine else set()
    return QuestionContext(
        node=node,
        detection=config.detection,
        config=config.services(node),
        addresses=tuple(sorted(own | set(node.addresses))),
        node_ports=resolve(config.nodeport_addresses, node, localhost=config.localhost_nodeports),
    )


def _own_addresses() -> set[bytes]:
    return addresses(read_network())


# -- cases -----------------------------------------------------------------------------------------

_KINDS = {
    "services": ("v1", "Service"),
    "endpointslices": ("discovery.k8s.io/v1", "EndpointSlice"),
    "endpoints": ("v1", "Endpoints"),
}


def objects_of_case(case: Case) -> Cache:
    """Return the objects of a case."""
    cache = Cache(_node_name(case))
    for field, (version, kind) in _KINDS.items():
        for raw in case.get(field) or ():
            cache.apply(read_object({"apiVersion": version, "kind": kind} | _as_written(raw)), ())
    networks = tuple(map(pack_network, case.get("service_cidrs") or ()))
    cache.apply((_node(case), ServiceCIDR("", networks)), ())
    return cache


def context_of_case(case: Case) -> QuestionContext:
    """Return the node of a case."""
    options = case.get("options") or {}
    gates = options.get("feature_gates") or {}
    node, detection = _node(case), _detection(case)
    families = detection.families(node)
    return QuestionContext(
        node=node,
        detection=detection,
        config=ServiceConfig(
            detector_v4=4 in families,
            detector_v6=6 in families,
            masquerade_all=bool(options.get("masquerade_all", False)),
            allow_external_ips=bool(gates.get("AllowServiceExternalIPs", True)),
        ),
        addresses=tuple(pack(ip) for ip in case["node"].get("ips", ())),
        node_ports=resolve(
            _nodeport_addresses(case),
            node,
            localhost=bool(options.get("localhost_nodeports", True)),
        ),
    )


def _as_written(raw: Mapping[str, Any]) -> dict[str, Any]:
    """Return an object as the API writes it: a case may have conditions as 0 and 1."""
    if "endpoints" not in raw:
        return dict(raw)
    endpoints = [
        endpoint
        | {
            "conditions": {
                name: value if value is None else bool(value)
                for name, value in (endpoint.get("conditions") or {}).items()
            }
        }
        for endpoint in raw["endpoints"] or ()
    ]
    return {**raw, "endpoints": endpoints}


def _node(case: Case) -> Node:
    return Node(
        name=_node_name(case),
        zone=case["node"].get("zone") or "",
        addresses=_primary(case),
        pod_cidrs=tuple(map(pack_network, _node_cidrs(case))),
    )


def _node_name(case: Case) -> str:
    return str(case["node"]["name"]).strip().lower()


def _primary(case: Case) -> tuple[bytes, ...]:
    found = case["node"].get("primary") or {}
    return tuple(pack(found[name]) for name in ("IPv4", "IPv6") if found.get(name))


def _nodeport_addresses(case: Case) -> tuple[str, ...]:
    given = case.get("nodeport_addresses") or ()
    return (given,) if isinstance(given, str) else tuple(given)


def _detect_local(case: Case) -> Mapping[str, Any]:
    options = case.get("options") or {}
    found: Mapping[str, Any] = options.get("detect_local") or {}
    return found


def _detection(case: Case) -> LocalDetector:
    """Return how pods are recognized; its fields are accepted under several names."""
    given = _detect_local(case)
    return LocalDetector(
        mode=given.get("mode", "ClusterCIDR"),
        cluster_cidrs=_cidrs(case.get("cluster_cidr")),
        bridge=_first_of(given, "interface", "bridge_interface", "bridge", "name"),
        prefix=_first_of(given, "prefix", "interface_name_prefix", "interface_prefix", "interface"),
    )


def _node_cidrs(case: Case) -> tuple[str, ...]:
    names = ("pod_cidrs", "podCIDRs", "node_cidrs", "node_cidr", "cidrs", "cidr")
    given = _first_of({**case["node"], **_detect_local(case)}, *names)
    return _cidrs(given or case.get("cluster_cidr"))


def _cidrs(given: str | list[str] | None) -> tuple[str, ...]:
    texts = given.split(",") if isinstance(given, str) else given or ()
    return tuple(text.strip() for text in texts)


def _first_of(values: Mapping[str, Any], *names: str) -> Any:
    return next((values[name] for name in names if values.get(name)), None)
