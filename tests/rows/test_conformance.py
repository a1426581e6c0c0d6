"""Flows a real kube-proxy was seen to allow, refuse and drop, asked of pure rows.

Rows answer who is eligible and who is masqueraded. What other parts decide is left out by the
rules in ``NOT_BY_ROWS``, each with its reason, and the number of flows left is asserted, so that
no change makes the set smaller unnoticed.
"""

from __future__ import annotations

import ipaddress
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from bpfsvc.address import ANY_NODE_ADDRESS_V4, ANY_NODE_ADDRESS_V6, endpoint_text, family, pack
from bpfsvc.cluster import Cluster
from bpfsvc.desired import NodeContext, ServiceConfig, desired
from bpfsvc.model import Service, read_object
from bpfsvc.rows import PROTOCOLS, Frontend, Policy, PortRows, ServiceRows

SAMPLE = Path(__file__).parent.parent / "conformance" / "sample.json"


class Flow(NamedTuple):
    case: dict[str, Any]
    flow: dict[str, Any]

    @property
    def expect(self) -> dict[str, Any]:
        """nftables mode, but NodePorts on loopback as in iptables mode."""
        mode = "expect_iptables" if self.flow["from"] == "localhost" else "expect_nftables"
        expected: dict[str, Any] = self.flow.get(mode, self.flow["expect"])
        return expected

    @property
    def services(self) -> list[Service]:
        raws = ({"apiVersion": "v1", "kind": "Service"} | raw for raw in self.case["services"])
        objects = (made for raw in raws for made in read_object(raw))
        return [one for one in objects if isinstance(one, Service)]

    @property
    def to_node(self) -> bool:
        destination = self.flow["dst_ip"]
        is_loopback = ipaddress.ip_address(destination).is_loopback
        return is_loopback or destination in self.case["node"]["ips"]


def flows() -> Iterator[Flow]:
    for case in json.loads(SAMPLE.read_text())["cases"]:
        if "nftables" in case["modes"]:
            yield from (Flow(case, flow) for flow in case["flows"])


# -- what pure rows do not decide --


def is_of_service_cidr(one: Flow) -> bool:
    """No Service has this address and port, but a ServiceCIDR or an active cluster IP covers it."""
    address, port = pack(one.flow["dst_ip"]), one.flow["dst_port"]
    in_range = any(
        ipaddress.ip_address(one.flow["dst_ip"]) in ipaddress.ip_network(cidr)
        for cidr in one.case["service_cidrs"]
    )
    return in_range and not any(
        service.is_proxied
        and address in service.cluster_ips
        and any(entry.number == port for entry in service.ports)
        for service in one.services
    )


def is_of_source_ranges(one: Flow) -> bool:
    """The load balancer's address admits some sources only."""
    return any(
        service.source_ranges
        and pack(one.flow["dst_ip"]) in service.load_balancer_ips
        and all(any(mask[12:]) for _, mask in service.source_ranges)
        for service in one.services
    )


def is_of_node_port_addresses(one: Flow) -> bool:
    """Whether this address of the node accepts NodePorts is said by map node_addresses."""
    return one.to_node and bool(one.case["nodeport_addresses"])


NOT_BY_ROWS: list[Callable[[Flow], bool]] = [
    is_of_service_cidr,
    is_of_source_ranges,
    is_of_node_port_addresses,
]
CHECKED = [one for one in flows() if not any(rule(one) for rule in NOT_BY_ROWS)]


# -- what they do --


def config_of(one: Flow) -> ServiceConfig:
    options = one.case.get("options", {})
    detect = options.get("detect_local", {}).get("mode", "ClusterCIDR")
    cidrs = [cidr for cidr in _cluster_cidrs(one) if detect == "ClusterCIDR"]
    by_interface = detect in ("BridgeInterface", "InterfaceNamePrefix")
    return ServiceConfig(
        detector_v4=by_interface or any(cidr.version == 4 for cidr in cidrs),
        detector_v6=by_interface or any(cidr.version == 6 for cidr in cidrs),
        masquerade_all=options.get("masquerade_all", False),
    )


def _cluster_cidrs(one: Flow) -> list[ipaddress.IPv4Network | ipaddress.IPv6Network]:
    given = one.case["cluster_cidr"] or []
    return [ipaddress.ip_network(cidr) for cidr in ([given] if isinstance(given, str) else given)]


def client_class(one: Flow) -> str:
    """Say what the kernel side takes the client for."""
    detect = one.case.get("options", {}).get("detect_local", {})
    if detect.get("mode") == "BridgeInterface":
        is_pod = one.flow.get("in_iface") == detect["interface"]
    else:
        is_pod = any(ipaddress.ip_address(one.flow["src_ip"]) in net for net in _cluster_cidrs(one))
    if is_pod:
        return "pod"
    return "node" if one.flow["from"] in ("node", "localhost", "node-as-vip") else "other"


def rows_of(one: Flow) -> ServiceRows:
    node = NodeContext(one.case["node"]["name"], one.case["node"]["zone"] or "")
    cluster = Cluster(node.name)
    for raw in one.case["endpointslices"]:
        cluster.apply(read_object(_as_the_api_writes(raw)), ())
    cluster.apply(one.services, ())
    rows: ServiceRows = {}
    for key in cluster.service_keys():
        rows |= desired(*cluster.lookup(key), node, config_of(one))
    return rows


def _as_the_api_writes(raw: dict[str, Any]) -> dict[str, Any]:
    """Complete a slice of the sample, which leaves out the kind and writes conditions as 0 or 1."""
    endpoints = [
        point | {"conditions": {name: bool(is_set) for name, is_set in point["conditions"].items()}}
        if "conditions" in point
        else point
        for point in raw["endpoints"]
    ]
    kind = {"apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice"}
    return kind | raw | {"endpoints": endpoints}


def found(one: Flow) -> tuple[PortRows, Policy] | None:
    """Look the frontend up as the kernel side does: the exact address, then the wildcard."""
    address, port = pack(one.flow["dst_ip"]), one.flow["dst_port"]
    protocol = PROTOCOLS[one.flow["proto"]]
    keys = [Frontend(address, port, protocol)]
    if one.to_node:
        wildcard = ANY_NODE_ADDRESS_V4 if family(address) == 4 else ANY_NODE_ADDRESS_V6
        keys.append(Frontend(wildcard, port, protocol))
    rows = rows_of(one)
    for key in keys:
        for port_rows in rows.values():
            if key in port_rows.frontends:
                return port_rows, getattr(port_rows.frontends[key], client_class(one))
    return None


@pytest.mark.parametrize("one", [pytest.param(one, id=one.flow["id"]) for one in CHECKED])
def test_rows_agree_with_kube_proxy(one: Flow) -> None:
    """Verdict, eligible endpoints and masquerade are those of kube-proxy."""
    match = found(one)
    expected = one.expect
    if match is None:
        assert expected["verdict"] == "none"
        return
    rows, policy = match
    verdict = "dnat" if policy.size else "reject" if policy.reject else "drop"
    picked = [
        endpoint_text(*backend)
        for backend in rows.backends[policy.first : policy.first + policy.size]
    ]
    assert (verdict, picked) == (expected["verdict"], expected["endpoints"])
    hairpins = [text for text in picked if text.rpartition(":")[0] == one.flow["src_ip"]]
    if not hairpins:
        assert policy.masquerade == expected["masquerade"]


def test_the_sample_is_checked_as_far_as_ever() -> None:
    assert len(list(flows())) == 126
    assert len(CHECKED) == 113
