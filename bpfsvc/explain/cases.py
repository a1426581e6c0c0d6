"""Files of cases: a node with its objects, and questions about it (the conformance format)."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from bpfsvc.address import pack, pack_network
from bpfsvc.cluster import Cluster
from bpfsvc.detection import Detection
from bpfsvc.errors import BpfsvcError, UsageError
from bpfsvc.explain.explainer import Explainer
from bpfsvc.explain.question import from_flow
from bpfsvc.explain.situation import Situation
from bpfsvc.explain.stage import Stage
from bpfsvc.model import Node, ObjectError, ServiceCIDR, read_object
from bpfsvc.nodeports import resolve
from bpfsvc.surroundings import ServiceConfig

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
    networks = tuple(map(pack_network, case.get("service_cidrs") or ()))
    cluster.apply((_node(case), ServiceCIDR("", networks)), ())
    return cluster


def _node(case: Case) -> Node:
    """Give the Node object that a case stands for."""
    return Node(
        name=_node_name(case),
        zone=case["node"].get("zone") or "",
        addresses=_primary(case),
        pod_cidrs=tuple(map(pack_network, _node_cidrs(case))),
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
    gates = options.get("feature_gates") or {}
    node, detection = _node(case), _detection(case)
    families = detection.families(node)
    return Situation(
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
            _setting(case), node, localhost=bool(options.get("localhost_nodeports", True))
        ),
    )


def _setting(case: Case) -> tuple[str, ...]:
    given = case.get("nodeport_addresses") or ()
    return (given,) if isinstance(given, str) else tuple(given)


def _node_name(case: Case) -> str:
    return str(case["node"]["name"]).strip().lower()


def _primary(case: Case) -> tuple[bytes, ...]:
    found = case["node"].get("primary") or {}
    return tuple(pack(found[name]) for name in ("IPv4", "IPv6") if found.get(name))


def _detect_local(case: Case) -> Mapping[str, Any]:
    options = case.get("options") or {}
    found: Mapping[str, Any] = options.get("detect_local") or {}
    return found


def _detection(case: Case) -> Detection:
    """Read how pods are told from others; under every name that the fields are known by."""
    given = _detect_local(case)
    return Detection(
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
