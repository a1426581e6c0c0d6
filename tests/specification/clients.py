"""The class of a client: pod of this node, the node itself, or other (sections 4.3 and 6.1)."""

from __future__ import annotations

from tests.specification.addresses import Address, Network, known_address, parse_network
from tests.specification.objects import Raw

HOST = ("node", "localhost", "node-as-vip")
"""The origins of packets that the host itself sends."""

# The sample names only the field of BridgeInterface; the others may be called any of these.
_INTERFACE_FIELDS = ("interface", "bridge_interface")
_PREFIX_FIELDS = ("prefix", "interface_prefix", "interface_name_prefix", "interface")
_NODE_CIDR_FIELDS = ("pod_cidrs", "podCIDRs", "node_cidrs", "node_cidr", "cidrs", "cidr")


def options(case: Raw) -> Raw:
    """Options that are not at their default."""
    return case.get("options") or {}


def source(flow: Raw) -> Address:
    """Source address before any translation."""
    return known_address(flow["src_ip"])


def destination(flow: Raw) -> Address:
    """Destination address before any translation."""
    return known_address(flow["dst_ip"])


def detect_mode(case: Raw) -> str:
    """Section 6.1: how pods of this node are recognised; ClusterCIDR by default."""
    return str((options(case).get("detect_local") or {}).get("mode") or "ClusterCIDR")


def pod_range(case: Raw, family: int) -> Network | None:
    """Section 6.1: the first CIDR of the family, of the cluster or of this node."""
    if detect_mode(case) == "ClusterCIDR":
        given = case.get("cluster_cidr")
    elif detect_mode(case) == "NodeCIDR":
        detect, node = options(case)["detect_local"], case["node"]
        given = (
            _first(detect, _NODE_CIDR_FIELDS)
            or _first(node, _NODE_CIDR_FIELDS)
            or case.get("cluster_cidr")
        )
    else:
        given = None
    texts = given.split(",") if isinstance(given, str) else given or []
    for text in texts:
        network = parse_network(text.strip())
        if network and network.version == family:
            return network
    return None


def has_detector(case: Raw, family: int) -> bool:
    """Section 6.1: detectors by interface serve both families, by CIDR only theirs."""
    by_interface = detect_mode(case) in ("BridgeInterface", "InterfaceNamePrefix")
    return by_interface or pod_range(case, family) is not None


def is_local_pod(case: Raw, flow: Raw) -> bool:
    """Section 6.1: by source address or by ingress interface, which host packets have none of."""
    detect = options(case).get("detect_local") or {}
    interface = None if flow["from"] in HOST else flow.get("in_iface")
    if detect_mode(case) == "BridgeInterface":
        return interface is not None and interface == _first(detect, _INTERFACE_FIELDS)
    if detect_mode(case) == "InterfaceNamePrefix":
        prefix = str(_first(detect, _PREFIX_FIELDS))
        return interface is not None and str(interface).startswith(prefix)
    network = pod_range(case, source(flow).version)
    return network is not None and source(flow) in network


def node_addresses(case: Raw) -> list[Address]:
    """All addresses of this node but loopback."""
    return [known_address(text) for text in case["node"]["ips"]]


def is_assigned(case: Raw, address: Address) -> bool:
    """True if the kernel of this node takes the address for its own; all of 127/8 and ::1 are."""
    return address.is_loopback or address in node_addresses(case)


def is_from_node_address(case: Raw, flow: Raw) -> bool:
    """Section 4.3: an address of this node, loopback and VIPs that are assigned here included."""
    return flow["from"] == "node-as-vip" or is_assigned(case, source(flow))


def node_ip(case: Raw, family: int) -> Address:
    """Section 13: the node's IP in a family, or the loopback address in its place."""
    placeholder = {4: "127.0.0.1", 6: "::1"}[family]
    primary = case["node"].get("primary") or {}
    return known_address(primary.get({4: "IPv4", 6: "IPv6"}[family]) or placeholder)


def _first(raw: Raw, names: tuple[str, ...]) -> str | list[str] | None:
    return next((raw[name] for name in names if raw.get(name)), None)
