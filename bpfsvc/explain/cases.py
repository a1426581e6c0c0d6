"""Cases: nodes with their objects and questions, out of a file (docs/explain.md)."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from bpfsvc.base.address import pack, pack_network
from bpfsvc.base.errors import BpfsvcError, UsageError
from bpfsvc.config.local_detector import LocalDetector
from bpfsvc.explain.context import QuestionContext
from bpfsvc.explain.private_kernel import PrivateKernel
from bpfsvc.explain.question import Question, question
from bpfsvc.model import Node, ObjectError, ServiceCIDR, read_object
from bpfsvc.services.cache import Cache
from bpfsvc.services.rules.context import ServiceConfig
from bpfsvc.services.rules.nodeport_addresses import resolve

FORMAT = "bpfsvc-kube-proxy-conformance/1"
"""The format of files of cases (docs/explain.md)."""

Case = Mapping[str, Any]
"""A node with its objects, and questions about it."""

_KINDS = {
    "services": ("v1", "Service"),
    "endpointslices": ("discovery.k8s.io/v1", "EndpointSlice"),
    "endpoints": ("v1", "Endpoints"),
}


def read_cases(path: Path) -> list[Case]:
    """Return the cases of a file; raise :class:`UsageError` if it is not a file of cases."""
    try:
        document = json.loads(path.read_text())
    except OSError as error:
        raise UsageError(
            f"{path} cannot be read: {error.strerror}", "give a file of cases"
        ) from error
    except ValueError as error:
        raise UsageError(f"{path} is not JSON: {error}", "give a file of cases") from error
    if isinstance(document, dict) and document.get("format", FORMAT) != FORMAT:
        raise UsageError(f"{path} has the format {document['format']!r}", f"write {FORMAT}")
    cases = document.get("cases") if isinstance(document, dict) else document
    if not isinstance(cases, list):
        raise UsageError(f"{path} has no list of cases", "see docs/explain.md for the format")
    return cases


def answer_cases(kernel: PrivateKernel, cases: list[Case]) -> Iterator[dict[str, object]]:
    """Yield the answers to all flows, case by case."""
    for number, case in enumerate(cases, start=1):
        name = str(case.get("id", number)) if isinstance(case, dict) else str(number)
        try:
            kernel.load(context_of_case(case), objects_of_case(case))
            for flow in case.get("flows", ()):
                yield {"id": flow.get("id", ""), **kernel.answer(from_flow(flow)).to_object()}
        except (BpfsvcError, ObjectError) as error:
            raise UsageError(f"case {name}: {error}", "fix the case") from error
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise UsageError(
                f"case {name} does not have the format: {type(error).__name__} {error}",
                "see docs/explain.md for the format",
            ) from error


def from_flow(flow: Mapping[str, Any]) -> Question:
    """Return the question of one flow of a case."""
    return question(
        flow["from"],
        flow["src_ip"],
        flow["proto"],
        flow["dst_ip"],
        flow["dst_port"],
        flow.get("in_iface") or "",
    )


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
    addresses = case["node"].get("primary") or {}
    return tuple(pack(addresses[name]) for name in ("IPv4", "IPv6") if addresses.get(name))


def _nodeport_addresses(case: Case) -> tuple[str, ...]:
    given = case.get("nodeport_addresses") or ()
    return (given,) if isinstance(given, str) else tuple(given)


def _detect_local(case: Case) -> Mapping[str, Any]:
    options = case.get("options") or {}
    detector: Mapping[str, Any] = options.get("detect_local") or {}
    return detector


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
