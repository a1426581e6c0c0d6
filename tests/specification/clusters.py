"""Random clusters in the format of cases.

There are few names, addresses and numbers on purpose, so that Services share addresses, slices
repeat endpoints and clients are their own backends. Every list begins with its simplest value,
where shrinking ends.
"""

from __future__ import annotations

from functools import cache
from typing import Any, NamedTuple

from hypothesis import strategies as st
from hypothesis.strategies import SearchStrategy

from tests.specification.objects import FAMILY_NAMES

NODE_NAME = "node-a"
NODE_IPS = {
    4: ["192.168.0.2", "192.168.1.2", "192.168.99.11"],
    6: ["2001:db8::1", "2001:db8:1::2"],
}
POD_IPS = {
    4: ["10.180.0.1", "10.180.0.2", "10.180.2.1", "10.180.2.2"],
    6: ["fd00:10:180::1", "fd00:10:180::2", "fd00:10:180:2::1", "fd00:10:180:2::2"],
}
"""Endpoints: by address the first two are on this node, the others elsewhere."""

OTHER_NODE_IP = {4: "192.168.0.77", 6: "2001:db8::77"}
UNALLOCATED = {4: "172.30.9.9", 6: "fd00:172:30::9:9"}
PORT_NUMBERS = [80, 443, 8080]

Object = dict[str, Any]


@st.composite
def mostly(draw: st.DrawFn, usual: SearchStrategy[Any], *rare: Any) -> Any:
    """Draw the usual value nine times in ten."""
    return draw(st.sampled_from(rare)) if draw(st.integers(0, 9)) == 9 else draw(usual)


def maybe(**fields: SearchStrategy[Any]) -> SearchStrategy[Object]:
    """Draw an object that has any of the fields."""
    return st.fixed_dictionaries({}, optional=fields)


# -- the node and its settings --

NODES: SearchStrategy[Object] = st.fixed_dictionaries(
    {
        "name": st.just(NODE_NAME),
        "ips": st.sampled_from([[*NODE_IPS[4], *NODE_IPS[6]], NODE_IPS[4], NODE_IPS[6][:1]]),
        "primary": st.sampled_from(
            [
                {"IPv4": NODE_IPS[4][0], "IPv6": NODE_IPS[6][0]},
                {"IPv4": NODE_IPS[4][0]},
                {"IPv6": NODE_IPS[6][0]},
            ]
        ),
        "zone": st.sampled_from([None, "zone-a", "zone-b", ""]),
    }
)

CLUSTER_CIDRS: SearchStrategy[Any] = st.sampled_from(
    [
        "10.0.0.0/8",
        None,
        ["10.0.0.0/8", "fd00:10::/32"],
        ["10.180.0.0/24", "fd00:10:180::/64", "10.0.0.0/8"],
        "fd00:10::/32",
    ]
)

NODE_PORT_ADDRESSES: SearchStrategy[Any] = st.sampled_from(
    [
        [],
        "primary",
        ["192.168.0.2/32"],
        ["2001:db8::/64"],
        ["192.168.0.0/16", "2001:db8:1::/48"],
        ["10.0.0.0/8", "0.0.0.0/0"],
        ["127.0.0.0/8", "2001:db8::1/128"],
        ["0.0.0.0/1"],
        ["localhost"],
        ["primary", "localhost"],
        ["all", "localhost"],
        ["all"],
        ["192.168.0.0/16", "primary"],
        ["192.168.1.0/24", "::/0"],
    ]
)

SERVICE_CIDRS: SearchStrategy[Any] = st.sampled_from(
    [[], ["172.30.0.0/16"], ["172.30.0.0/16", "fd00:172:30::/64"], ["172.50.0.0/16"]]
)

OPTIONS: SearchStrategy[Object] = maybe(
    masquerade_all=st.booleans(),
    localhost_nodeports=st.booleans(),
    feature_gates=st.sampled_from([{}, {"AllowServiceExternalIPs": False}]),
    detect_local=st.sampled_from(
        [
            {"mode": "ClusterCIDR"},
            {"mode": "none"},
            {"mode": "NodeCIDR", "pod_cidrs": ["10.180.0.0/24", "fd00:10:180::/64"]},
            {"mode": "BridgeInterface", "interface": "cbr0"},
            {"mode": "InterfaceNamePrefix", "prefix": "veth"},
        ]
    ),
)


# -- Services --


@st.composite
def services(draw: st.DrawFn, number: int) -> Object:
    """Draw the Service of a number; cluster IPs, node ports and names are its own."""
    kind = draw(st.sampled_from(["ClusterIP", "NodePort", "LoadBalancer", "LoadBalancer"]))
    metadata: Object = {"namespace": f"ns{1 + number % 2}", "name": f"svc{number // 2}"}
    metadata |= draw(mostly(st.just({}), {"labels": {PROXY_NAME: ""}}))
    spec: Object = {"type": kind, **draw(cluster_ips(number)), "ports": draw(ports(number, kind))}
    spec |= draw(
        maybe(
            internalTrafficPolicy=st.sampled_from(["Cluster", "Local"]),
            externalIPs=st.lists(st.sampled_from(outside_ips("203.0.113.", number)), max_size=3),
            loadBalancerSourceRanges=SOURCE_RANGES,
            sessionAffinity=st.sampled_from(["None", "ClientIP"]),
        )
    )
    if kind != "ClusterIP" or "externalIPs" in spec:
        spec["externalTrafficPolicy"] = draw(st.sampled_from(["Cluster", "Local", "Local"]))
    other_types = [{"type": name} for name in ("ClusterIP", "ClusterIP", "ExternalName")]
    spec |= draw(mostly(st.just({}), {"clusterIP": "None"}, *other_types))
    if kind == "LoadBalancer":
        ips = st.sampled_from(outside_ips("198.51.100.", number))
        modes = maybe(ipMode=st.sampled_from(["VIP", "Proxy"]))
        ingress = st.builds(lambda ip, mode: {"ip": ip, **mode}, ips, modes)
        found = draw(st.lists(mostly(ingress, {"hostname": "lb.example"}), max_size=3))
        return {"metadata": metadata, "spec": spec, "status": {"loadBalancer": {"ingress": found}}}
    return {"metadata": metadata, "spec": spec}


PROXY_NAME = "service.kubernetes.io/service-proxy-name"

SOURCE_RANGES = st.lists(
    st.sampled_from(
        [
            "203.0.113.0/25",
            "10.180.0.0/24",
            " 192.168.0.0/016 ",
            "2600:5200::/32",
            "2001:db8::/64",
            "0.0.0.0/0",
            "not a range",
        ]
    ),
    max_size=3,
)


def outside_ips(prefix: str, number: int) -> list[str]:
    """List the Service's own, a node address, one to share, one in IPv6 and two oddly written."""
    own = f"{prefix}{100 + number}"
    return [own, NODE_IPS[4][2], "5.6.7.8", f"2001:db8:5::{number}", f"{prefix}0{number}", "none"]


def cluster_ips(number: int) -> SearchStrategy[Object]:
    """Draw the fields that say the families and the cluster IP of each."""
    v4, v6 = f"172.30.0.{41 + number}", f"fd00:172:30::{41 + number}"
    fields: list[Object] = [
        {"clusterIP": v4},
        {"clusterIP": v6},
        {"clusterIP": f"172.30.0.0{41 + number}"},
        {"clusterIP": v4, "clusterIPs": [v4, v6]},
    ]
    for ips in ([v4], [v4, v6], [v6, v4]):
        families = [FAMILY_NAMES[6 if ":" in ip else 4] for ip in ips]
        fields.append({"clusterIP": ips[0], "clusterIPs": ips, "ipFamilies": families})
    return st.sampled_from(fields)


@st.composite
def ports(draw: st.DrawFn, number: int, kind: str) -> list[Object]:
    """Draw ``spec.ports``; one number may be there for several protocols, with its node port."""
    pairs = st.tuples(st.sampled_from(PORT_NUMBERS), st.sampled_from(["TCP", "UDP", "SCTP"]))
    found = []
    for index, (port, protocol) in enumerate(draw(st.lists(pairs, min_size=1, unique=True))[:3]):
        entry: Object = {"name": f"p{index}", "protocol": protocol, "port": port}
        if kind != "ClusterIP" and draw(mostly(st.just(True), False)):
            entry["nodePort"] = 30000 + 10 * number + PORT_NUMBERS.index(port)
        found.append(entry)
    if len(found) == 1:
        found[0] |= draw(st.sampled_from([{}, {"name": ""}]))
    return found


# -- slices --


@st.composite
def slices(draw: st.DrawFn, service: Object) -> Object:
    """Draw a slice in one of the Service's families; its name is that of the Service."""
    name, namespace = service["metadata"]["name"], service["metadata"]["namespace"]
    spec = service["spec"]
    family = draw(st.sampled_from(spec.get("ipFamilies", [_family_name(spec["clusterIP"])])))
    labels: Object = {SERVICE_NAME: name}
    labels = draw(mostly(st.just(labels), {}, {SERVICE_NAME: ""}, labels | {HEADLESS: ""}))
    point = endpoints(
        4 if family == "IPv4" else 6,
        draining=draw(mostly(st.just(False), True)),
        hinted=draw(st.booleans()),
    )
    points = st.lists(point, min_size=1, max_size=4)
    return {
        "metadata": {"namespace": namespace, "name": name, "labels": labels},
        "addressType": family,
        "ports": [entry for port in spec["ports"] for entry in draw(slice_ports(port))],
        "endpoints": draw(mostly(points, [])),
    }


SERVICE_NAME = "kubernetes.io/service-name"
HEADLESS = "service.kubernetes.io/headless"


def slice_ports(port: Object) -> SearchStrategy[list[Object]]:
    """Draw the entries of a slice's ``ports`` that are meant for a port of the Service, mostly."""
    meant = {"name": port["name"], "protocol": port["protocol"], "port": port["port"]}
    elsewhere = meant | {"port": 9090}
    usual: list[list[Object]] = [[meant], [elsewhere], [meant, elsewhere]]
    return mostly(
        st.sampled_from(usual),
        [],
        [meant | {"name": "other"}],
        [meant | {"protocol": "SCTP"}],
        [{key: value for key, value in meant.items() if key != "name"}],
        [{key: value for key, value in meant.items() if key != "port"}],
    )


@cache
def endpoints(family: int, *, draining: bool, hinted: bool) -> SearchStrategy[Object]:
    """Draw an endpoint; ``nodeName`` and address need not agree, as only the name counts."""
    ips = [*POD_IPS[family], NODE_IPS[family][0], OTHER_NODE_IP[family]]
    addresses = st.lists(st.sampled_from(ips), min_size=1, max_size=2)
    least = 1 if hinted else 0
    zones = st.lists(_names("zone-a", "zone-b"), min_size=least, max_size=2)
    nodes = st.lists(_names(NODE_NAME, "node-b"), min_size=least, max_size=2)
    required = {"addresses": mostly(addresses, [])}
    if hinted:
        required["hints"] = st.fixed_dictionaries({"forZones": zones}, optional={"forNodes": nodes})
    if draining:
        required["conditions"] = st.just({"ready": False, "serving": True, "terminating": True})
    possible = {
        "nodeName": st.sampled_from([NODE_NAME, "node-b"]),
        "conditions": CONDITIONS,
        "hints": maybe(forZones=zones, forNodes=nodes),
    }
    optional = {name: field for name, field in possible.items() if name not in required}
    return st.fixed_dictionaries(required, optional=optional)


CONDITIONS: SearchStrategy[Object] = st.sampled_from(
    [
        {"ready": True, "serving": True, "terminating": False},
        {"ready": True},
        {"ready": False, "serving": True, "terminating": True},
        {"ready": False, "serving": False, "terminating": True},
        {"ready": False, "terminating": True},
        {"ready": False},
        {"ready": True, "serving": False, "terminating": True},
        {"ready": None, "serving": None, "terminating": None},
        {"ready": 0, "serving": 1, "terminating": 1},
    ]
)


def _names(*names: str) -> SearchStrategy[Object]:
    return st.sampled_from([{"name": name} for name in names])


def _family_name(address: str) -> str:
    return FAMILY_NAMES[6 if ":" in address else 4]


# -- all of it --


class Tenant(NamedTuple):
    """A Service and its slices. They are drawn together, so that shrinking drops them together."""

    number: int
    service: Object
    slices: list[Object]


@st.composite
def tenants(draw: st.DrawFn) -> Tenant:
    """Draw the Service of one of four numbers, and up to three slices for it."""
    number = draw(st.integers(0, 3))
    service = draw(services(number))
    found = draw(mostly(st.lists(slices(service), min_size=1, max_size=3), []))
    for index, one in enumerate(found):
        one["metadata"]["name"] += f"-{index}"
    return Tenant(number, service, found)


@st.composite
def clusters(draw: st.DrawFn) -> Object:
    """Draw a case without flows."""
    by_number = st.lists(tenants(), min_size=1, max_size=4, unique_by=lambda tenant: tenant.number)
    found = draw(by_number)
    return {
        "id": "random",
        "title": "random cluster",
        "category": "random",
        "modes": ["iptables", "nftables"],
        "node": draw(NODES),
        "cluster_cidr": draw(CLUSTER_CIDRS),
        "nodeport_addresses": draw(NODE_PORT_ADDRESSES),
        "service_cidrs": draw(SERVICE_CIDRS),
        "options": draw(OPTIONS),
        "services": [tenant.service for tenant in found],
        "endpointslices": [one for tenant in found for one in tenant.slices],
    }
