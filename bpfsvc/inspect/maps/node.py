"""Records of the node: its addresses, interfaces and settings, counters, and how full maps are."""

from __future__ import annotations

from typing import NamedTuple

from bpfsvc.base.address import unpack
from bpfsvc.base.networks import Network, network_text
from bpfsvc.datapath.attach import cgroup
from bpfsvc.inspect.fields import address_text, chooser, interface_text, lacks, names, total
from bpfsvc.inspect.maps.generic import generic, known_entries
from bpfsvc.inspect.reader import Reader
from bpfsvc.inspect.records import Records, Row, Value

_ONLY = bytes(4)
"""The key of the only entry of an array."""

_POD_RANGES = {"v4": ("IPv4", 96), "v6": ("IPv6", 0)}
"""Families, and how many bits of a mask come before the bits of the family."""

INTERFACE = ("v4", "v6", "pods")
CHOICE = ("prefix", "choices", "towards")
UPLINK = ("ifindex", "mac", "redirect", "takes")

_SWITCHES = ("detect_interfaces", "takeover", "fast_path", "established")
"""Settings that are on or off."""

_PORTS = ("masquerade_first", "masquerade_ports")


def node_addresses(reader: Reader) -> Records:
    """Return the node's addresses, and whether NodePorts are accepted there."""
    more, entries = known_entries(reader, "node_addresses", ("address",), ("nodeports",))
    rows: list[Row] = [
        (unpack(address), bool(nodeports), *cells)
        for (address, nodeports), cells in sorted(entries)
    ]
    return Records("node_addresses", ("address", "nodeports", *more), rows)


def interfaces(reader: Reader) -> Records:
    """Return the interfaces with programs, their masquerade addresses, and which are pods'."""
    more, entries = known_entries(reader, "interfaces", ("value",), INTERFACE)
    rows: list[Row] = [
        (interface_text(index), index, address_text(v4), address_text(v6), bool(pods), *cells)
        for (index, v4, v6, pods), cells in sorted(entries)
    ]
    columns = ("interface", "index", "masquerade_v4", "masquerade_v6", "pods")
    return Records("interfaces", columns + more, rows)


def masquerade_choices(reader: Reader) -> Records:
    """Return the masquerade addresses that depend on the destination of a packet."""
    more, entries = known_entries(reader, "masquerade_choices", CHOICE, ("address",))
    first_bits = reader.layout.constant("MASQUERADE_CHOICE_BITS")
    rows: list[Row] = [
        (
            *(interface_text(choices), network_text(Network(towards, bits - first_bits))),
            *(unpack(address), *cells),
        )
        for (bits, choices, towards, address), cells in entries
    ]
    columns = ("interface", "towards", "address", *more)
    return Records("masquerade_choices", columns, sorted(rows, key=str))


def uplinks(reader: Reader) -> Records:
    """Return the interfaces with XDP, each with the interface that routes name."""
    more, entries = known_entries(reader, "uplinks", ("value",), UPLINK)
    rows: list[Row] = [
        (
            *(interface_text(index), index, interface_text(routed), mac.hex(":")),
            *(bool(redirect), bool(takes), *cells),
        )
        for (index, routed, mac, redirect, takes), cells in sorted(entries)
    ]
    columns = ("interface", "index", "routed_as", "mac", "redirects", "takes_redirected")
    return Records("uplinks", columns + more, rows)


class MasqueradePorts(NamedTuple):
    """The range of source ports for masquerading, both ends included."""

    first: int
    last: int

    def __str__(self) -> str:
        return f"{self.first}-{self.last}"


def masquerade_ports(reader: Reader) -> MasqueradePorts | None:
    """Return the range in use; None if the agent has not set one yet."""
    layout, raw = reader.layout.maps["settings"], reader.value("settings", _ONLY)
    if raw is None or lacks(layout.value, _PORTS):
        return None
    first, count = chooser(layout.value, _PORTS)(raw)
    return MasqueradePorts(first, first + count - 1) if count else None


def settings(reader: Reader) -> Records:
    """Return one row per setting. Fields of one setting are combined; others are shown as is."""
    rows: list[Row] = []
    joined: set[str] = set()
    layout, raw = reader.layout.maps["settings"], reader.value("settings", _ONLY)
    if raw is None:
        return Records("settings", ("setting", "value"), rows)
    for suffix, (family, skipped) in _POD_RANGES.items():
        fields = tuple(f"{name}_{suffix}" for name in ("detect_pods", "pod_network", "pod_mask"))
        if not lacks(layout.value, fields):
            detect, network, mask = chooser(layout.value, fields)(raw)
            prefix = int.from_bytes(mask, "big").bit_count() - skipped
            rows.append((f"pod_range_{family}", f"{unpack(network)}/{prefix}" if detect else ""))
            joined.update(fields)
    if not lacks(layout.value, _PORTS):
        rows.append(("masquerade_ports", str(masquerade_ports(reader) or "")))
        joined.update(_PORTS)
    flat = generic(reader, "settings")
    for values in flat.rows:
        pairs = zip(flat.columns, values, strict=True)
        rows += [
            (name, _named(reader, name, value))
            for name, value in pairs
            if name not in {*joined, "key"}
        ]
    return Records("settings", ("setting", "value"), rows)


def is_node_namespace(reader: Reader) -> bool:
    """True if this process is in the network namespace of the node."""
    layout, raw = reader.layout.maps["settings"], reader.value("settings", _ONLY)
    if raw is None or lacks(layout.value, ("netns_cookie",)):
        return True
    cookie = chooser(layout.value, ("netns_cookie",))(raw)[0]
    return cookie in (0, cgroup.netns_cookie())


def _named(reader: Reader, setting: str, value: Value) -> Value:
    """Return the meaning of a number, in the words of the options: True, ``all``, ``unlimited``."""
    if setting in _SWITCHES:
        return bool(value)
    if not isinstance(value, int):
        return value
    if setting == "socket_lb":
        return reader.layout.constants_named("SOCKET_LB_").get(value, value)
    if setting.startswith("icmp_interval_") and value == reader.layout.constants.get(
        "ICMP_UNLIMITED"
    ):
        return "unlimited"
    return value


def counters(reader: Reader) -> Records:
    """Return the events since the build was loaded, by reason, summed over the CPUs."""
    layout, raw = reader.layout.maps["counters"], reader.value("counters", _ONLY)
    fields = names(layout.value)
    sums = total(layout, fields)(raw) if raw is not None else [0] * len(fields)
    rows: list[Row] = []
    for name, count in zip(fields, sums, strict=True):
        event, _, reason = name.partition("__")
        rows.append((event.replace("_", " "), reason.replace("_", " "), count))
    return Records("counters", ("event", "reason", "count"), rows)


def sizes(reader: Reader) -> Records:
    """Return how full the maps are that can fill up; ``use`` is in percent."""
    rows: list[Row] = []
    for name, layout in sorted(reader.layout.maps.items()):
        if layout.type.endswith(("hash", "lpm_trie")):
            count = reader.count(name)
            use = round(100 * count / layout.max_entries, 1) if layout.max_entries else 0.0
            rows.append((name, count, layout.max_entries, use))
    return Records("sizes", ("map", "rows", "capacity", "use"), rows)
