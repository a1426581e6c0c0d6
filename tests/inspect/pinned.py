"""Maps of dictionaries with a layout of their own, for everything that reads pinned maps."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from bpfsvc.base.address import pack
from bpfsvc.datapath.maps.layout import Layout, MapLayout, Record
from bpfsvc.datapath.maps.tcp_sockets import NodeSocket
from bpfsvc.services.entries import Policies
from bpfsvc.services.scheduling.removal import OnRemoval
from bpfsvc.services.scheduling.schedulers import Schedule

_PLACE = (("address", "16s"), ("port", "H"), ("protocol", "B"), ("zero", "B"))
_NUMBER = (("value", "I"),)
_FLOW = (
    ("source", "16s"),
    ("destination", "16s"),
    ("source_port", "H"),
    ("destination_port", "H"),
    ("protocol", "B"),
    ("hook", "B"),
    ("zero", "H"),
)
_CONNECTION = (
    *((f"after.{name}", kind) for name, kind in _FLOW),
    ("created", "Q"),
    ("seen", "Q"),
    ("service", "I"),
    ("counters", "I"),
    *((name, "B") for name in ("reply", "replied", "established")),
    *((name, "B") for name in ("fin_sent", "fin_received", "reset")),
    *((name, "B") for name in ("masquerade", "masquerade_pending")),
)
_POLICY = (
    *((name, "I") for name in ("first", "size", "table")),
    *(("masquerade", "B"), ("reject", "B"), ("trials", "B"), ("spills", "B")),
)
_REFUSALS = ("rejected__no_endpoints", "dropped__no_endpoints", "dropped__source_range")
_FAILURES = ("refused", "unanswered", "unreachable")
_TRAFFIC = ("connections", "packets", "bytes", "reply_packets", "reply_bytes")

Fields = tuple[tuple[str, str], ...]

Changes = Mapping[str, tuple[str, Fields, Fields]]
"""Maps of another build: type, fields of the key, fields of the value."""

FIELDS: dict[str, tuple[str, Fields, Fields]] = {
    "frontends": (
        "hash",
        _PLACE,
        (
            ("service", "I"),
            ("generation", "I"),
            *(
                (f"{clients}.{n}", kind)
                for clients in ("pod", "node", "other")
                for n, kind in _POLICY
            ),
            *((name, "I" if name.endswith("seconds") else "B") for name in Policies._fields[3:]),
        ),
    ),
    "schedule_tables": (
        "hash",
        tuple((name, "I") for name in ("service", "generation", "first", "chunk")),
        (("slots", "256s"),),
    ),
    "candidates": (
        "hash",
        tuple((name, "I") for name in ("service", "generation", "first", "chunk")),
        (("rows", "512s"),),
    ),
    "spills": (
        "hash",
        (("service", "I"), ("generation", "I")),
        (
            *((name, "I") for name in ("first", "size", "table", "near_first", "near_size")),
            *((name, "I") for name in ("far_trials", "overload", "inactive", "compared", "near")),
            *(("near_factor", "I"), ("far_factor", "I"), ("counters", "256s")),
        ),
    ),
    "echo_addresses": ("lpm_trie", (("prefix", "I"), ("address", "16s")), _NUMBER),
    "schedule_rounds": ("hash", _NUMBER, (("connections", "Q"), ("spilled", "Q"))),
    "localities": (
        "hash",
        (
            *(("service", "I"), ("address", "16s"), ("local", "B"), ("schedule", "B")),
            ("zero", "2s"),
        ),
        (("changed", "Q"), ("joins", "I"), ("last", "I"), ("members", "512s")),
    ),
    "backends": (
        "hash",
        (("service", "I"), ("generation", "I"), ("slot", "I")),
        (
            *(("address", "16s"), ("port", "H"), ("hairpin", "B"), ("zero", "B")),
            ("counters", "I"),
        ),
    ),
    "backend_loads": ("array", _NUMBER, (("connections", "Q"), ("sockets", "Q"))),
    "backend_counters": ("percpu_array", _NUMBER, tuple((name, "Q") for name in _TRAFFIC)),
    "backend_failures": ("percpu_hash", _NUMBER, tuple((name, "Q") for name in _FAILURES)),
    "connect_times": ("hash", _NUMBER, (("buckets", "32s"), ("sum_us", "Q"))),
    "quarantined": ("hash", _NUMBER, tuple((name, "Q") for name in ("until", "state", "tried"))),
    "endpoints": ("hash", _PLACE, _NUMBER),
    "services": (
        "hash",
        _NUMBER,
        (
            *((name, "64s") for name in ("namespace", "name", "port_name")),
            ("number", "H"),
            ("protocol", "B"),
            ("family", "B"),
        ),
    ),
    "connections": ("hash", _FLOW, _CONNECTION),
    "new_connections": ("lru_hash", _FLOW, _CONNECTION),
    "direct_flows": ("array", _NUMBER, _NUMBER),
    "netfilter_flows": ("hash", _FLOW, _NUMBER),
    "node_addresses": ("hash", (("address", "16s"),), (("nodeports", "B"), ("zero", "3s"))),
    "interfaces": (
        "hash",
        _NUMBER,
        (("v4", "16s"), ("v6", "16s"), ("pods", "B"), ("zero", "3s")),
    ),
    "refusals": ("percpu_hash", _NUMBER, tuple((name, "Q") for name in _REFUSALS)),
    "source_ranges": (
        "lpm_trie",
        (("prefix", "I"), ("service", "I"), ("network", "16s")),
        _NUMBER,
    ),
    "service_networks": ("lpm_trie", (("prefix", "I"), ("network", "16s")), _NUMBER),
    "positions": (
        "hash",
        (
            *(("service", "I"), ("generation", "I"), ("address", "16s")),
            *(("port", "H"), ("zero", "H")),
        ),
        (("slots", "8s"),),
    ),
    "affinities": (
        "lru_hash",
        (("service", "I"), ("client", "16s")),
        (("backend", "16s"), ("port", "H"), ("zero", "6s"), ("seen", "Q")),
    ),
    "settings": (
        "array",
        _NUMBER,
        (
            ("netns_cookie", "Q"),
            *((f"pod_{what}_v{n}", "16s") for n in (4, 6) for what in ("network", "mask")),
            ("masquerade_first", "H"),
            ("masquerade_ports", "H"),
            ("detect_pods_v4", "H"),
            ("detect_pods_v6", "H"),
            ("udp_seconds", "I"),
            ("detect_interfaces", "I"),
            ("node_v4", "16s"),
            ("node_v6", "16s"),
            ("reserved_ports", "256s"),
        ),
    ),
    "counters": (
        "percpu_array",
        _NUMBER,
        (("dropped__no_endpoints", "Q"), ("connections_reopened", "Q")),
    ),
    "layout": ("array", _NUMBER, (("json", "64s"),)),
    "packets": ("percpu_array", _NUMBER, _FLOW),
    "port_filters": ("array", _NUMBER, (("source", "64s"), ("destination", "64s"))),
    "socket_translations": ("sk_storage", _NUMBER, (("rows", "8s"),)),
}
"""Map -> type, fields of the key, fields of the value. What the C sources have, shortened."""

INGRESS, EGRESS = 1, 2

CONSTANTS = {
    **{"SOCKET_LB_OFF": 0, "SOCKET_LB_HOST": 1, "SOCKET_LB_ALL": 2},
    "CONNECT_SHORTEST_SHIFT": 6,
    "ICMP_UNLIMITED": 0xFFFFFFFF,
    **{"HOOK_INGRESS": INGRESS, "HOOK_EGRESS": EGRESS},
    **{"CLIENT_POD": 0, "CLIENT_NODE": 1, "CLIENT_OTHER": 2},
    **{"SOURCE_UNKNOWN": 0, "SOURCE_LEARNED": 1, "SOURCE_TRIED": 2, "SOURCE_PROVEN": 3},
    "SOURCE_UNSURE": 4,
    **{f"SCHEDULE_{schedule.name}": schedule.value for schedule in Schedule},
    **{f"AMONG_{name}": number for number, name in enumerate(("ALL", "LOCAL", "NEAR"))},
    **{f"REMOVAL_{removal.name}": removal.value for removal in OnRemoval},
    **{"QUARANTINE_AWAY": 1, "QUARANTINE_TRIAL": 2},
}


class Maps:
    """A reader of entries that were added by field names. ``changes`` replaces or adds maps."""

    def __init__(self, changes: Changes | None = None) -> None:
        maps = {**FIELDS, **(changes or {})}
        self.layout = Layout(
            "test",
            {
                name: MapLayout(kind, Record(key), Record(value), max_entries=8, flags=0)
                for name, (kind, key, value) in maps.items()
            },
            CONSTANTS,
        )
        self._rows: dict[str, dict[bytes, bytes]] = {name: {} for name in maps}
        self.sockets: list[tuple[int, tuple[bytes, int]]] | None = []
        """Service id and backend of the node's TCP sockets; None: they cannot be listed."""

    def put(
        self,
        name: str,
        key: Mapping[str, int | bytes],
        *values: Mapping[str, int | bytes],
    ) -> None:
        """Write an entry; a per-CPU map takes the values of all CPUs."""
        layout = self.layout.maps[name]
        packed = [layout.value.pack(value) for value in values]
        if layout.type.startswith("percpu"):
            packed = [value + bytes(-len(value) % 8) for value in packed]
        self._rows[name][layout.key.pack(key)] = b"".join(packed)

    def entries(self, name: str) -> Iterator[tuple[bytes, bytes]]:
        """Yield the entries of a map."""
        return iter(self._rows[name].items())

    def value(self, name: str, key: bytes) -> bytes | None:
        """Return one value."""
        return self._rows[name].get(key)

    def count(self, name: str) -> int:
        """Return the number of entries of a map."""
        return len(self._rows[name])

    def node_sockets(self) -> list[NodeSocket] | None:
        """Return the node's sockets."""
        return None if self.sockets is None else [NodeSocket(*opened) for opened in self.sockets]

    # -- what several tests put in --

    def service(self, number: int, name: str, port_name: str = "", family: int = 4) -> None:
        """Add the name of a service id; its port is 80/TCP."""
        row = {"namespace": b"default", "name": name.encode(), "port_name": port_name.encode()}
        self.put(
            "services", {"value": number}, {**row, "number": 80, "protocol": 6, "family": family}
        )

    def entry(
        self,
        table: str,
        hook: int,
        before: tuple[str, str],
        after: tuple[str, str],
        protocol: int = 6,
        **state: int,
    ) -> None:
        """Add one entry of a connection; places are ``address:port`` texts."""
        self.put(
            table,
            {**_flow(*before), "protocol": protocol, "hook": hook},
            {**{f"after.{name}": value for name, value in _flow(*after).items()}, **state},
        )


def _flow(source: str, destination: str) -> dict[str, int | bytes]:
    (source_address, source_port), (address, port) = place(source), place(destination)
    return {
        "source": source_address,
        "source_port": source_port,
        "destination": address,
        "destination_port": port,
    }


def place(text: str) -> tuple[bytes, int]:
    """Return the address and port of ``10.0.0.1:80`` or ``[fd00::1]:80``."""
    address, _, port = text.rpartition(":")
    return pack(address.strip("[]")), int(port)
