"""Entries of the maps that describe a node, for a question that is asked about it."""

from __future__ import annotations

import struct

from bpfsvc.base.address import pack
from bpfsvc.datapath.maps.layout import Value
from bpfsvc.datapath.maps.pins import Pinned
from bpfsvc.explain.context import QuestionContext
from bpfsvc.services.rules.context import primary_address
from bpfsvc.services.rules.nodeport_addresses import LOOPBACK, LOOPBACK_V6

_MASQUERADE_FIRST, _MASQUERADE_PORTS = 10000, 20000
_ONLY_KEY = bytes(4)
_NO_ADDRESS = bytes(16)

_EXAMPLES = {4: pack("192.0.2.1"), 6: pack("2001:db8::1")}
"""What a node without an address of a family masquerades to (RFC 5737, RFC 3849)."""


def write_interface(pinned: Pinned, context: QuestionContext, index: int, name: str) -> None:
    """Describe a device in the maps as the node's interface of that name."""
    is_pods = context.detection.is_for_pods(name)
    record = pinned.layout.maps["interfaces"].value
    v4, v6 = (_primary(context, of_family) or _EXAMPLES[of_family] for of_family in (4, 6))
    entry = record.pack({"v4": v4, "v6": v6, "pods": is_pods})
    pinned.map("interfaces").update(struct.pack("=I", index), entry)


def write_node(pinned: Pinned, context: QuestionContext) -> None:
    """Write the addresses of a node and its settings."""
    record = pinned.layout.maps["node_addresses"].value
    addresses = pinned.map("node_addresses")
    for address in {*context.addresses, LOOPBACK, LOOPBACK_V6}:
        state = context.node_ports.state(address)
        number = pinned.layout.constant(f"NODEPORTS_{state.upper()}")
        addresses.update(address, record.pack({"nodeports": number}))
    settings = pinned.layout.maps["settings"].value
    values = _settings(context)
    # A question about a refused packet is answered however many there were.
    for name in ("icmp_interval_v4", "icmp_interval_v6"):
        values[name] = pinned.layout.constant("ICMP_UNLIMITED")
    pinned.map("settings").update(_ONLY_KEY, settings.pack(values))


def _settings(context: QuestionContext) -> dict[str, Value]:
    values: dict[str, Value] = {
        "masquerade_first": _MASQUERADE_FIRST,
        "masquerade_ports": _MASQUERADE_PORTS,
        "detect_interfaces": context.detection.by_interface,
        "node_v4": _primary(context, 4) or _NO_ADDRESS,
        "node_v6": _primary(context, 6) or _NO_ADDRESS,
    }
    for of_family, (network, mask) in context.detection.ranges(context.node).items():
        name = f"v{of_family}"
        values |= {f"pod_network_{name}": network, f"pod_mask_{name}": mask}
        values[f"detect_pods_{name}"] = 1
    return values


def _primary(context: QuestionContext, of_family: int) -> bytes | None:
    return primary_address((*context.node.addresses, *context.addresses), of_family)
