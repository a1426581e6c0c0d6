"""A node with Services for tests of ``bpfsvc services`` and ``bpfsvc top``."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence

from bpfsvc.base.address import pack
from tests.inspect.inspected import frontend, policy
from tests.inspect.pinned import EGRESS, FIELDS, INGRESS, Changes, Maps, place

WEB_BACKENDS = ("10.244.1.5:8080", "10.244.2.7:8080")
WEB_VIP, DNS_VIP, NODE_PORT = "10.96.0.10:80", "10.96.0.53:53", "0.0.0.0:30080"
GONE = "10.244.9.9:8080"
OPEN = {"established": 1}
CLOSING = {"established": 1, "fin_sent": 1}
NODE = "192.168.50.11"

_key, _value = FIELDS["settings"][1:]
SETTINGS = {"settings": ("array", _key, (*_value, ("socket_lb", "I")))}


def busy_node(socket_lb: int = 1, changes: Changes | None = None) -> Maps:
    """A node where ``web`` has two backends, of which one is here, and ``dns`` has none."""
    maps = Maps({**SETTINGS, **(changes or {})})
    maps.put("settings", {"value": 0}, {"socket_lb": socket_lb, "udp_seconds": 60})
    maps.put("node_addresses", {"address": pack(NODE)}, {"nodeports": 1})
    maps.service(1, "web", "http")
    slots(maps, 1, 9, [*WEB_BACKENDS, WEB_BACKENDS[0]], local=WEB_BACKENDS[0])
    everywhere = policy("pod", 0, 2) | policy("node", 0, 2, masquerade=1)
    both = {"service": 1, "generation": 9, "affinity_seconds": 60}
    maps.put("frontends", frontend(WEB_VIP), both | everywhere | policy("other", 0, 2))
    maps.put("frontends", frontend("10.96.0.10:0", 0), {"service": 1})
    maps.put(
        "frontends",
        frontend(NODE_PORT),
        both | everywhere | policy("other", 2, 1) | {"restricted": 1},
    )
    maps.put("source_ranges", {"prefix": 32 + 104, "service": 1, "network": pack("10.0.0.0")}, {})
    number = {"number": 53, "protocol": 17, "family": 4}
    maps.put("services", {"value": 2}, {"namespace": b"kube-system", "name": b"dns", **number})
    rejected = policy("pod", reject=1) | policy("node", reject=1) | policy("other", reject=1)
    maps.put("frontends", frontend(DNS_VIP, 17), {"service": 2, "generation": 4} | rejected)
    return maps


def slots(
    maps: Maps, service: int, generation: int, backends: Sequence[str], local: str = ""
) -> None:
    """Write backends of a generation; the counters of each are those of its first slot, plus 1."""
    for slot, text in enumerate(backends):
        address, port = place(text)
        key = {"service": service, "generation": generation, "slot": slot}
        counters, hairpin = backends.index(text) + 1, int(text == local)
        value: dict[str, int | bytes] = {"address": address, "port": port}
        value |= {"hairpin": hairpin, "counters": counters}
        maps.put("backends", key, value)


def connection(
    maps: Maps,
    number: int,
    backend: str,
    state: Mapping[str, int],
    *,
    service: int = 1,
    protocol: int = 6,
    table: str = "connections",
) -> None:
    """Add the pair of entries of a connection from a client's port of that number."""
    client, vip = f"10.244.1.7:{number}", WEB_VIP
    both = {"service": service, **state}
    maps.entry(table, INGRESS, (client, vip), (client, backend), protocol, **both)
    maps.entry(table, EGRESS, (backend, client), (vip, client), protocol, reply=1, **both)


def count(maps: Maps, counters: int, *values: int) -> None:
    """Write connections, packets, bytes and the replies' as two CPUs have counted them."""
    names = ("connections", "packets", "bytes", "reply_packets", "reply_bytes")
    first = dict.fromkeys(names, 1)
    second = {name: value - 1 for name, value in zip(names, values, strict=True)}
    maps.put("backend_counters", {"value": counters}, first, second)


def connect_times(maps: Maps, counters: int, buckets: Sequence[int], sum_us: int) -> None:
    """Write the connects to a backend by bucket; the first ends at 64 microseconds."""
    packed = b"".join(number.to_bytes(8, sys.byteorder) for number in buckets)
    maps.put("connect_times", {"value": counters}, {"buckets": packed, "sum_us": sum_us})
