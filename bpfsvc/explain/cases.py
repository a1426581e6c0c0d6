"""Files of cases: a node with its objects, and questions about it (the conformance format)."""

from __future__ import annotations

import ipaddress
import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from bpfsvc.address import pack
from bpfsvc.cluster import Cluster
from bpfsvc.errors import BpfsvcError, UsageError
from bpfsvc.explain.explainer import Explainer
from bpfsvc.explain.question import from_flow
from bpfsvc.explain.situation import Situation
from bpfsvc.explain.stage import Stage
from bpfsvc.model import Node, ObjectError, read_object
from bpfsvc.nodeports import resolve
from bpfsvc.surroundings import NodeContext, ServiceConfig

FORMAT = "bpfsvc-kube-proxy-conformance/1"

_KINDS = {
    "services": ("v1", "Service"),
    "endpointslices": ("discovery.k8s.io/v1", "EndpointSlice"),
    "endpoints": ("v1", "Endpoints"),
}

Case = Mapping[str, Any]


def read_cases(path: Path) -> list[Case]:
    """Read a file; raise :class:`UsageError` if it is none of cases."""
    try:
        document = json.loads(path.read_text())
    except OSError as error:
        raise UsageError(
            f"{path} cannot be read: {error.strerror}", "name a file of cases"
        ) from error
    except ValueError as error:
        raise UsageError(f"{path} is not JSON: {error}", "name a file of cases") from error
    if isinstance(document, dict) and document.get("format", FORMAT) != FORMAT:
        raise UsageError(f"{path} is of format {document['format']!r}", f"write {FORMAT}")
    cases = document.get("cases") if isinstance(document, dict) else document
    if not isinstance(cases, list):
        raise UsageError(f"{path} holds no list of cases", "see docs/explain.md for the format")
    return cases


def answers(stage: Stage, cases: list[Case]) -> Iterator[dict[str, object]]:
    """Answer all flows, case by case."""
    for number, case in enumerate(cases, start=1):
        name = str(case.get("id", number)) if isinstance(case, dict) else str(number)
        try:
            explainer = Explainer(stage, situation_of(case), cluster_of(case))
            for flow in case.get("flows", ()):
                yield {"id": flow.get("id", ""), **explainer.answer(from_flow(flow)).to_object()}
        except (BpfsvcError, ObjectError) as error:
            raise UsageError(f"case {name}: {error}", "mend the case") from error
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise UsageError(
                f"case {name} is not of the format: {type(error).__name__} {error}",
                "see docs/explain.md for the format",
            ) from error


def cluster_of(case: Case) -> Cluster:
    """Give the objects of a case."""
    cluster = Cluster(_node_name(case))
    for field, (version, kind) in _KINDS.items():
        for raw in case.get(field) or ():
            cluster.apply(read_object({"apiVersion": version, "kind": kind} | _plain(raw)), ())
    cluster.node = cluster_node(case)
    return cluster


def cluster_node(case: Case) -> Node:
    """Give the Node object that a case stands for."""
    return Node(
        name=_node_name(case), zone=case["node"].get("zone") or "", addresses=_primary(case)
    )


def _plain(raw: Mapping[str, Any]) -> dict[str, Any]:
    """Give an object as the API writes it: cases may write conditions as 0 and 1."""
    if "endpoints" not in raw:
        return dict(raw)
    points = [
        point
        | {
            "conditions": {
                name: value if value is None else bool(value)
                for name, value in (point.get("conditions") or {}).items()
            }
        }
        for point in raw["endpoints"] or ()
    ]
    return {**raw, "endpoints": points}


def situation_of(case: Case) -> Situation:
    """Give the node of a case."""
    options = case.get("options") or {}
    detect = options.get("detect_local") or {}
    mode = detect.get("mode", "ClusterCIDR")
    networks = _pod_networks(case, mode, detect)
    marker = _interface_marker(mode, detect)
    families = {ipaddress.ip_network(cidr).version for cidr in networks}
    gates = options.get("feature_gates") or {}
    addresses = tuple(pack(ip) for ip in case["node"].get("ips", ()))
    return Situation(
        node=NodeContext(_node_name(case), case["node"].get("zone") or "", _primary(case)),
        config=ServiceConfig(
            detector_v4=marker is not None or 4 in families,
            detector_v6=marker is not None or 6 in families,
            masquerade_all=bool(options.get("masquerade_all", False)),
            allow_external_ips=bool(gates.get("AllowServiceExternalIPs", True)),
        ),
        addresses=addresses,
        node_ports=resolve(
            _setting(case),
            cluster_node(case),
            localhost=bool(options.get("localhost_nodeports", True)),
        ),
        pod_networks=networks,
        is_pod_interface=marker,
        service_networks=tuple(case.get("service_cidrs") or ()),
    )


def _setting(case: Case) -> tuple[str, ...]:
    given = case.get("nodeport_addresses") or ()
    return (given,) if isinstance(given, str) else tuple(given)


def _node_name(case: Case) -> str:
    return str(case["node"]["name"]).strip().lower()


def _primary(case: Case) -> tuple[bytes, ...]:
    found = case["node"].get("primary") or {}
    return tuple(pack(found[name]) for name in ("IPv4", "IPv6") if found.get(name))


def _pod_networks(case: Case, mode: str, detect: Mapping[str, Any]) -> tuple[str, ...]:
    """Give the networks of pods, the first of each family."""
    if mode == "ClusterCIDR":
        given = case.get("cluster_cidr")
    elif mode == "NodeCIDR":
        given = _first_of(
            {**case["node"], **detect},
            "pod_cidrs",
            "podCIDRs",
            "node_cidrs",
            "node_cidr",
            "cidrs",
            "cidr",
        ) or case.get("cluster_cidr")
    else:
        given = None
    texts = given.split(",") if isinstance(given, str) else given or ()
    first: dict[int, str] = {}
    for text in texts:
        network = ipaddress.ip_network(text.strip(), strict=False)
        first.setdefault(network.version, str(network))
    return tuple(first.values())


def _interface_marker(mode: str, detect: Mapping[str, Any]) -> Any:
    if mode == "BridgeInterface":
        bridge = _first_of(detect, "interface", "bridge_interface", "bridge", "name")
        return lambda name: name == bridge
    if mode == "InterfaceNamePrefix":
        prefix = _first_of(
            detect, "prefix", "interface_name_prefix", "interface_prefix", "interface"
        )
        return lambda name: bool(name) and name.startswith(prefix)
    return None


def _first_of(values: Mapping[str, Any], *names: str) -> Any:
    return next((values[name] for name in names if values.get(name)), None)
