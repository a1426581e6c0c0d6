"""Flows that a real kube-proxy allowed, refused and dropped, compared with pure entries.

The order in which the kernel side looks entries up is repeated here, in a few lines of Python; the
sample is also tested with the real programs, elsewhere. The number of flows is asserted, so that no
change makes the set smaller unnoticed.
"""

from __future__ import annotations

import ipaddress
import json
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from bpfsvc.base.address import (
    ANY_NODE_ADDRESS_V4,
    ANY_NODE_ADDRESS_V6,
    endpoint_text,
    family,
    pack,
    pack_network,
)
from bpfsvc.base.networks import Network, bits_of, contains
from bpfsvc.base.protocols import PROTOCOLS
from bpfsvc.model import Node, Service, read_object
from bpfsvc.services.cache import Cache, ServiceKey
from bpfsvc.services.entries import Backend, Frontend, Policy, ServiceEntries
from bpfsvc.services.rules.context import NodeContext, ServiceConfig
from bpfsvc.services.rules.nodeport_addresses import SHUT, NodePortAddresses, resolve
from bpfsvc.services.rules.view import ServiceView, evaluate

SAMPLE = Path(__file__).parent.parent / "conformance" / "sample.json"


class Flow(NamedTuple):
    case: dict[str, Any]
    flow: dict[str, Any]

    @property
    def expect(self) -> dict[str, Any]:
        """Return the expectation of nftables mode; for NodePorts on loopback of iptables mode."""
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


def cases() -> Iterator[dict[str, Any]]:
    yield from json.loads(SAMPLE.read_text())["cases"]


def flows() -> Iterator[Flow]:
    for case in cases():
        yield from (Flow(case, flow) for flow in case["flows"])


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
    """Return the class that the kernel side gives to a client."""
    detect = one.case.get("options", {}).get("detect_local", {})
    if detect.get("mode") == "BridgeInterface":
        is_pod = one.flow.get("in_iface") == detect["interface"]
    else:
        is_pod = any(ipaddress.ip_address(one.flow["src_ip"]) in net for net in _cluster_cidrs(one))
    if is_pod:
        return "pod"
    return "node" if one.flow["from"] in ("node", "localhost", "node-as-vip") else "other"


def node_of(one: Flow) -> Node:
    node = one.case["node"]
    addresses = tuple(map(pack, node["primary"].values()))
    return Node(node["name"], node["zone"] or "", addresses)


def cluster_of(one: Flow) -> Cache:
    node = node_of(one)
    cluster = Cache(node.name)
    cluster.apply([node], ())
    for raw in one.case["endpointslices"]:
        cluster.apply(read_object(_as_the_api_writes(raw)), ())
    cluster.apply(one.services, ())
    return cluster


def entries_of(one: Flow) -> ServiceEntries:
    cluster = cluster_of(one)
    entries: ServiceEntries = {}
    for key in cluster.service_keys():
        entries |= view_of(cluster, key, one).entries
    return entries


def view_of(cluster: Cache, key: ServiceKey, one: Flow) -> ServiceView:
    context = NodeContext(cluster.node.name, cluster.node.zone, cluster.node.addresses)
    return evaluate(*cluster.lookup(key), context, config_of(one))


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


def nodeports_of(one: Flow) -> NodePortAddresses:
    localhost = one.case.get("options", {}).get("localhost_nodeports", True)
    setting = tuple(one.case["nodeport_addresses"])
    return resolve(setting, node_of(one), localhost=localhost)


def keys(one: Flow) -> Iterator[Frontend]:
    """Yield the frontends that the programs look up, in their order.

    The exact address, then the wildcard where NodePorts answer, then the guard of the address.
    """
    address, port = pack(one.flow["dst_ip"]), one.flow["dst_port"]
    protocol = PROTOCOLS[one.flow["proto"]]
    yield Frontend(address, port, protocol)
    if one.to_node and nodeports_of(one).state(address) != SHUT:
        wildcard = ANY_NODE_ADDRESS_V4 if family(address) == 4 else ANY_NODE_ADDRESS_V6
        yield Frontend(wildcard, port, protocol)
    yield Frontend.rest(address)


def answer(one: Flow) -> dict[str, Any]:
    """Return what the entries say, in the words of the sample."""
    entries, source = entries_of(one), pack(one.flow["src_ip"])
    nothing = {"endpoints": [], "masquerade": False}
    for key in keys(one):
        for port_entries in entries.values():
            if key not in port_entries.frontends:
                continue
            policies = port_entries.frontends[key]
            if policies.restricted and not any(
                contains(net, source) for net in port_entries.ranges
            ):
                return {"verdict": "drop", **nothing}
            policy: Policy = getattr(policies, client_class(one))
            if not policy.size:
                return {"verdict": "reject" if policy.reject else "drop", **nothing}
            picked = port_entries.backends[policy.first : policy.first + policy.size]
            masqueraded = [
                backend
                for backend in picked
                if policy.masquerade or (backend.hairpin and backend.address == source)
            ]
            said: dict[str, Any] = {
                "verdict": "dnat",
                "endpoints": _texts(picked),
                "masquerade": len(masqueraded) == len(picked),
            }
            if masqueraded and not said["masquerade"]:
                said["masquerade_endpoints"] = _texts(masqueraded)
            return said
    cidrs = map(pack_network, one.case["service_cidrs"])
    networks = [Network(address, bits_of(mask)) for address, mask in cidrs]
    unallocated = any(contains(net, pack(one.flow["dst_ip"])) for net in networks)
    return {"verdict": "drop" if unallocated else "none", **nothing}


def _texts(backends: Iterable[Backend]) -> list[str]:
    return [endpoint_text(*backend.place) for backend in backends]


@pytest.mark.parametrize("one", [pytest.param(one, id=one.flow["id"]) for one in flows()])
def test_entries_agree_with_kube_proxy(one: Flow) -> None:
    """Verdict, eligible endpoints and masquerade equal those of kube-proxy."""
    assert answer(one) == one.expect


CHECKS = [case for case in cases() if "hcnp" in case]


@pytest.mark.parametrize("case", [pytest.param(case, id=case["id"]) for case in CHECKS])
def test_health_checks_agree_with_kube_proxy(case: dict[str, Any]) -> None:
    """The same Services have a health check, on the same port, with the same count."""
    one = Flow(case, {})
    cluster = cluster_of(one)
    counted: dict[str, Any] = {}
    for key in cluster.service_keys():
        for check in view_of(cluster, key, one).summary.health_checks.values():
            counted["/".join(key)] = {
                "port": check.port,
                "http_status": 200 if check.local_endpoints else 503,
                "localEndpoints": check.local_endpoints,
            }
    assert counted == case["hcnp"]


AFFINITIES = [case for case in cases() if "affinity" in case]


@pytest.mark.parametrize("case", [pytest.param(case, id=case["id"]) for case in AFFINITIES])
def test_affinity_agrees_with_kube_proxy(case: dict[str, Any]) -> None:
    entries = entries_of(Flow(case, {}))
    kept = [
        {
            "service": f"{port.namespace}/{port.name}",
            "port": port.port_name,
            "timeout_seconds": policies.affinity_seconds,
        }
        for port, port_entries in entries.items()
        for policies in set(port_entries.frontends.values())
        if policies.affinity_seconds
    ]
    for expected in case["affinity"]:
        assert expected in kept
    assert all(one in case["affinity"] for one in kept)


def test_the_whole_sample_is_checked() -> None:
    assert len(list(flows())) == 140
