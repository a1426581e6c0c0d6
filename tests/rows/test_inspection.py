"""Rows of the maps become records: names instead of numbers, one record for one thing."""

from __future__ import annotations

import json
import tracemalloc
from collections.abc import Mapping

import pytest
import yaml

from bpfsvc.address import pack, pack_network
from bpfsvc.errors import UsageError
from bpfsvc.inspection.connections import connections
from bpfsvc.inspection.documents import write_json, write_yaml
from bpfsvc.inspection.dump import available, dump
from bpfsvc.inspection.records import Records, Value
from bpfsvc.inspection.tables import duration_text, write_tables
from tests.rows.pinned import EGRESS, FIELDS, INGRESS, Maps, place

SECOND = 1_000_000_000
NOW = 1000 * SECOND

CLIENT, VIP, BACKEND, NODE = (
    "10.244.1.5:40000",
    "10.96.0.10:80",
    "10.244.2.7:8080",
    "10.0.0.1:20000",
)


OPEN = {"replied": 1, "established": 1}
"""The state of an established connection's entries."""


def records(found: Records) -> list[dict[str, Value]]:
    return [dict(zip(found.columns, row, strict=True)) for row in found.rows]


def shown(maps: Maps, name: str) -> list[dict[str, Value]]:
    (found,) = dump(maps, [name])
    return records(found)


def policy(
    who: str, first: int = 0, size: int = 0, masquerade: int = 0, reject: int = 0
) -> dict[str, int]:
    values = {"first": first, "size": size, "masquerade": masquerade, "reject": reject}
    return {f"{who}.{name}": value for name, value in values.items()}


def frontend(text: str, protocol: int = 6) -> dict[str, int | bytes]:
    address, port = place(text)
    return {"address": address, "port": port, "protocol": protocol}


def web(maps: Maps) -> None:
    """A Service with two backends, 1 and 2 of generation 9."""
    maps.service(1, "web", "http")
    for slot, text in enumerate(("10.244.1.5:8080", BACKEND)):
        address, port = place(text)
        key = {"service": 1, "generation": 9, "slot": slot}
        maps.put("backends", key, {"address": address, "port": port, "counters": slot + 1})


# -- Services --


def test_a_frontend_shows_each_class_of_clients_its_backends() -> None:
    maps = Maps()
    web(maps)
    value = {
        "service": 1,
        "generation": 9,
        **policy("pod", 0, 2),
        **policy("node", 0, 2),
        **policy("other", 1, 1, masquerade=1),
    }
    maps.put("frontends", frontend(VIP), value)
    common = {"frontend": "10.96.0.10:80/TCP", "service": "default/web:http"}
    assert shown(maps, "frontends") == [
        {
            **common,
            "clients": ("pod", "node"),
            "action": "forward",
            "backends": ("10.244.1.5:8080", "10.244.2.7:8080"),
        },
        {
            **common,
            "clients": ("other",),
            "action": "masquerade",
            "backends": ("10.244.2.7:8080",),
        },
    ]


@pytest.mark.parametrize(("reject", "action"), [(1, "reject"), (0, "drop")])
def test_a_frontend_without_backends_shows_what_becomes_of_the_client(
    reject: int, action: str
) -> None:
    maps = Maps()
    maps.service(1, "web")
    value = {"service": 1, **policy("pod", reject=reject)}
    maps.put(
        "frontends",
        frontend(VIP),
        value | policy("node", reject=reject) | policy("other", reject=reject),
    )
    (found,) = shown(maps, "frontends")
    assert (found["clients"], found["action"], found["backends"]) == (
        ("pod", "node", "other"),
        action,
        (),
    )


@pytest.mark.parametrize(
    ("text", "protocol", "name"),
    [
        pytest.param("0.0.0.0:30007", 6, "nodeport:30007/TCP", id="any IPv4 address of the node"),
        pytest.param("[::]:30007", 17, "nodeport6:30007/UDP", id="any IPv6 address of the node"),
        pytest.param("[fd96::10]:53", 17, "[fd96::10]:53/UDP", id="an IPv6 address"),
        pytest.param("10.96.0.10:9", 99, "10.96.0.10:9/99", id="a protocol without a name"),
    ],
)
def test_a_frontend_is_named_after_what_clients_use(text: str, protocol: int, name: str) -> None:
    maps = Maps()
    maps.put("frontends", frontend(text, protocol), {"service": 7})
    (found,) = shown(maps, "frontends")
    assert found["frontend"] == name
    assert found["service"] == "#7", "an id nobody named"


def test_a_backend_shows_its_traffic_summed_over_the_cpus() -> None:
    maps = Maps()
    web(maps)
    maps.put(
        "backend_counters",
        {"value": 2},
        {"connections": 1, "packets": 10, "bytes": 1000},
        {"connections": 2, "reply_packets": 5, "reply_bytes": 500},
    )
    first, second = shown(maps, "backends")
    assert first["backend"] == "10.244.1.5:8080"
    assert (first["connections"], first["packets"]) == (0, 0)
    assert second == {
        "service": "default/web:http",
        "backend": BACKEND,
        "connections": 3,
        "packets": 10,
        "bytes": 1000,
        "reply_packets": 5,
        "reply_bytes": 500,
        "generation": 9,
        "slot": 1,
    }


def test_services_and_endpoints_are_listed_by_name_and_number_of_uses() -> None:
    maps = Maps()
    maps.service(2, "web", family=6)
    maps.service(1, "web", "http")
    maps.put("endpoints", frontend(BACKEND), {"value": 3})
    assert [(each["id"], each["family"]) for each in shown(maps, "services")] == [
        (2, "IPv6"),
        (1, "IPv4"),
    ]
    assert shown(maps, "endpoints") == [{"endpoint": "10.244.2.7:8080/TCP", "uses": 3}]


# -- connections --


def pair(
    maps: Maps,
    table: str = "connections",
    *,
    routed_client: str = CLIENT,
    protocol: int = 6,
    **state: int,
) -> None:
    """The pair around routing: a client that a frontend leads to a backend."""
    state = {"service": 1, "created": NOW - 60 * SECOND, "seen": NOW - 2 * SECOND} | state
    there, back = (routed_client, BACKEND), (BACKEND, routed_client)
    maps.entry(table, INGRESS, (CLIENT, VIP), there, protocol, **state)
    maps.entry(table, EGRESS, back, (VIP, CLIENT), protocol, reply=1, **state)


def one(maps: Maps) -> dict[str, Value]:
    (found,) = records(connections(maps, NOW))
    return found


def test_a_pair_of_entries_is_one_connection() -> None:
    maps = Maps()
    maps.service(1, "web", "http")
    pair(maps, replied=1, established=1)
    assert one(maps) == {
        "protocol": "TCP",
        "client": CLIENT,
        "frontend": "10.96.0.10:80/TCP",
        "service": "default/web:http",
        "backend": BACKEND,
        "masquerade": "",
        "translation": ("destination",),
        "state": "ESTABLISHED",
        "age": 60.0,
        "idle": 2.0,
    }


def test_the_pair_around_the_wire_belongs_to_the_same_connection() -> None:
    maps = Maps()
    pair(maps, replied=1, established=1)
    maps.entry("connections", EGRESS, (CLIENT, BACKEND), (NODE, BACKEND), **OPEN)
    maps.entry("connections", INGRESS, (BACKEND, NODE), (BACKEND, CLIENT), reply=1, **OPEN)
    found = one(maps)
    assert found["client"] == CLIENT
    assert found["masquerade"] == NODE
    assert found["translation"] == ("destination", "source")


def test_a_hairpin_is_one_connection_too() -> None:
    maps = Maps()
    hairpin = "10.244.2.7:40000"
    maps.entry("connections", INGRESS, (hairpin, VIP), (hairpin, BACKEND))
    maps.entry("connections", EGRESS, (BACKEND, hairpin), (VIP, hairpin), reply=1)
    maps.entry("connections", EGRESS, (hairpin, BACKEND), (NODE, BACKEND))
    maps.entry("connections", INGRESS, (BACKEND, NODE), (BACKEND, hairpin), reply=1)
    found = one(maps)
    assert (found["client"], found["backend"], found["masquerade"]) == (hairpin, BACKEND, NODE)


def test_a_masquerade_that_has_not_left_yet_is_pending() -> None:
    maps = Maps()
    pair(maps, "new_connections")
    maps.entry(
        "new_connections", EGRESS, (CLIENT, BACKEND), (CLIENT, BACKEND), masquerade_pending=1
    )
    assert one(maps)["masquerade"] == "pending"


def test_a_changed_source_port_is_told() -> None:
    maps = Maps()
    pair(maps, routed_client="10.244.1.5:10001")
    found = one(maps)
    assert found["client"] == CLIENT
    assert found["translation"] == ("destination", "source-port=10001")


def test_a_direct_connection_whose_port_was_changed_has_no_frontend() -> None:
    maps = Maps()
    changed = "10.244.1.5:10001"
    maps.entry("connections", INGRESS, (CLIENT, BACKEND), (changed, BACKEND))
    maps.entry("connections", EGRESS, (BACKEND, changed), (BACKEND, CLIENT), reply=1)
    found = one(maps)
    assert (found["frontend"], found["service"]) == ("", "")
    assert found["translation"] == ("source-port=10001",)


@pytest.mark.parametrize(
    ("protocol", "state", "name"),
    [
        pytest.param(6, {}, "SYN_SENT", id="no answer to a SYN"),
        pytest.param(17, {}, "UNREPLIED", id="no answer to a datagram"),
        pytest.param(6, {"replied": 1}, "SYN_RECEIVED", id="an answer, not acknowledged"),
        pytest.param(6, OPEN, "ESTABLISHED", id="an acknowledged answer"),
        pytest.param(17, OPEN, "ESTABLISHED", id="an answer to a datagram"),
        pytest.param(6, {**OPEN, "fin_sent": 1}, "FIN_WAIT", id="one side has finished"),
        pytest.param(6, {**OPEN, "fin_received": 1}, "FIN_WAIT", id="or the other"),
        pytest.param(6, {**OPEN, "fin_sent": 1, "fin_received": 1}, "CLOSED", id="both have"),
        pytest.param(6, {"reset": 1}, "RESET", id="it was refused"),
        pytest.param(6, {**OPEN, "fin_sent": 1, "reset": 1}, "RESET", id="it was broken off"),
    ],
)
def test_the_state_is_named(protocol: int, state: Mapping[str, int], name: str) -> None:
    maps = Maps()
    pair(maps, "connections", protocol=protocol, routed_client=CLIENT, **state)
    assert one(maps)["state"] == name


@pytest.mark.parametrize("lost", ["forward", "reply"])
def test_one_entry_alone_still_tells_the_connection(lost: str) -> None:
    maps = Maps()
    if lost == "reply":
        maps.entry("new_connections", INGRESS, (CLIENT, VIP), (CLIENT, BACKEND))
    else:
        maps.entry("new_connections", EGRESS, (BACKEND, CLIENT), (VIP, CLIENT), reply=1)
    found = one(maps)
    assert (found["client"], found["frontend"], found["backend"]) == (
        CLIENT,
        "10.96.0.10:80/TCP",
        BACKEND,
    )


def test_a_connection_in_both_maps_while_it_moves_is_shown_once() -> None:
    maps = Maps()
    pair(maps, "new_connections", replied=1)
    pair(maps, replied=1, established=1)
    assert one(maps)["state"] == "ESTABLISHED"


def test_two_connections_to_one_backend_stay_two() -> None:
    maps = Maps()
    pair(maps)
    other = "10.244.1.5:40001"
    maps.entry("connections", INGRESS, (other, VIP), (other, BACKEND))
    found = records(connections(maps, NOW))
    assert [each["client"] for each in found] == [CLIENT, other]


def test_a_clock_read_before_the_entry_was_written_gives_no_negative_age() -> None:
    maps = Maps()
    pair(maps, created=NOW + SECOND, seen=NOW + SECOND)
    assert (one(maps)["age"], one(maps)["idle"]) == (0.0, 0.0)


def test_a_hundred_thousand_entries_take_little_memory() -> None:
    maps = Maps()
    for number in range(25_000):
        client = f"10.{number >> 16}.{number >> 8 & 255}.{number & 255}:40000"
        maps.entry("connections", INGRESS, (client, VIP), (client, BACKEND), service=1)
        maps.entry("connections", EGRESS, (BACKEND, client), (VIP, client), service=1, reply=1)
    tracemalloc.start()
    found = connections(maps, NOW)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert len(found.rows) == 25_000
    assert peak < 1200 * len(found.rows)


# -- the node --


def test_interfaces_have_names_where_they_exist() -> None:
    maps = Maps()
    maps.put("interfaces", {"value": 1}, {"v4": pack("10.0.0.1")})
    maps.put("interfaces", {"value": 999_999}, {"v6": pack("fd00::1")})
    assert shown(maps, "interfaces") == [
        {"interface": "lo", "index": 1, "masquerade_v4": "10.0.0.1", "masquerade_v6": ""},
        {"interface": "#999999", "index": 999_999, "masquerade_v4": "", "masquerade_v6": "fd00::1"},
    ]


def test_settings_are_put_together_to_what_the_options_said() -> None:
    maps = Maps()
    network, mask = pack_network("10.244.0.0/16")
    values: dict[str, int | bytes] = {"pod_network_v4": network, "pod_mask_v4": mask}
    values |= {"detect_pods_v4": 1, "masquerade_first": 10000, "masquerade_ports": 20000}
    maps.put("settings", {"value": 0}, {**values, "udp_seconds": 120, "reserved_ports": b"10000"})
    found = {str(each["setting"]): each["value"] for each in shown(maps, "settings")}
    assert found == {
        "pod_range_IPv4": "10.244.0.0/16",
        "pod_range_IPv6": "",
        "masquerade_ports": "10000-29999",
        "netns_cookie": 0,
        "udp_seconds": 120,
        "reserved_ports": "10000",
    }


def test_counters_are_events_with_reasons_summed_over_the_cpus() -> None:
    maps = Maps()
    maps.put("counters", {"value": 0}, {"dropped__no_endpoints": 2}, {"dropped__no_endpoints": 3})
    assert shown(maps, "counters") == [
        {"event": "dropped", "reason": "no endpoints", "count": 5},
        {"event": "connections reopened", "reason": "", "count": 0},
    ]


def test_sizes_tell_how_full_the_maps_are_that_can_fill_up() -> None:
    maps = Maps()
    maps.service(1, "web")
    found = {each["map"]: each for each in shown(maps, "sizes")}
    assert found["services"] == {"map": "services", "rows": 1, "capacity": 8, "use": 12.5}
    assert "settings" not in found
    assert "socket_translations" not in found


# -- other versions --


def test_a_field_of_a_newer_version_is_a_further_column() -> None:
    kind, key, value = FIELDS["endpoints"]
    maps = Maps({"endpoints": (kind, key, (*value, ("weight", "I")))})
    maps.put("endpoints", frontend(BACKEND), {"value": 1, "weight": 50})
    assert shown(maps, "endpoints") == [
        {"endpoint": "10.244.2.7:8080/TCP", "uses": 1, "weight": 50}
    ]


def test_a_map_of_a_newer_version_is_shown_by_its_fields() -> None:
    affinity = (
        ("client", "16s"),
        ("service_port", "H"),
        ("protocol", "B"),
        ("zero", "B"),
    )
    maps = Maps({"affinity": ("hash", affinity, (("value", "I"), ("label", "8s"), ("raw", "4s")))})
    maps.put(
        "affinity",
        {"client": pack("fd00::1"), "service_port": 80, "protocol": 6},
        {"value": 3, "label": b"blue", "raw": b"\1\2\3\4"},
    )
    assert "affinity" in available(maps.layout)
    assert shown(maps, "affinity") == [
        {
            "client": "fd00::1",
            "service_port": 80,
            "protocol": "TCP",
            "value": 3,
            "label": "blue",
            "raw": "01020304",
        }
    ]


def test_a_map_that_lost_a_field_is_shown_by_the_fields_it_has() -> None:
    kind, key, value = FIELDS["connections"]
    older = tuple(field for field in value if field[0] != "fin_sent")
    maps = Maps({"connections": (kind, key, older), "new_connections": ("lru_hash", key, older)})
    maps.entry("connections", INGRESS, (CLIENT, VIP), (CLIENT, BACKEND), service=1)
    (found,) = shown(maps, "connections")
    assert found["source"] == "10.244.1.5"
    assert found["source_port"] == 40000
    assert found["after.destination_port"] == 8080
    assert "new_connections" in available(maps.layout), "nobody else shows it now"


def test_an_array_shows_what_was_written_in_the_order_of_its_indices() -> None:
    maps = Maps({"weights": ("percpu_array", (("value", "I"),), (("share", "Q"),))})
    maps.put("weights", {"value": 256}, {"share": 1}, {"share": 2})
    maps.put("weights", {"value": 1}, {"share": 4}, {"share": 0})
    maps.put("weights", {"value": 2}, {"share": 0}, {"share": 0})
    assert shown(maps, "weights") == [{"key": 1, "share": 4}, {"key": 256, "share": 3}]


# -- names and texts --


def test_an_unknown_map_is_answered_with_the_maps_there_are() -> None:
    with pytest.raises(UsageError) as caught:
        list(dump(Maps(), ["frontends", "fronted"]))
    assert caught.value.message == "there is no map 'fronted'"
    assert "frontends, services, backends" in caught.value.hint
    for machinery in ("layout", "packets", "port_filters", "direct_flows"):
        assert machinery not in caught.value.hint


def test_every_map_is_shown_once_and_parts_by_the_whole() -> None:
    everything = [found.name for found in dump(Maps())]
    assert everything == [
        "frontends",
        "services",
        "backends",
        "endpoints",
        "connections",
        "node_addresses",
        "interfaces",
        "settings",
        "counters",
        "sizes",
    ]
    parts = ["new_connections", "connections", "backend_counters"]
    assert [found.name for found in dump(Maps(), parts)] == ["connections", "backends"]


def test_the_order_does_not_depend_on_that_of_the_kernel() -> None:
    texts = []
    for order in (1, -1):
        maps = Maps()
        for number in range(3)[::order]:
            maps.service(number + 1, f"web-{number}")
            maps.put("endpoints", frontend(f"10.0.0.{9 + number}:80"), {"value": 1})
        texts.append("".join(write_tables(dump(maps))))
    assert texts[0] == texts[1]
    assert texts[0].index("10.0.0.9:80") < texts[0].index("10.0.0.10:80")


SAMPLE = [
    Records("empty", ("name",), []),
    Records(
        "sample",
        ("name", "count", "clients", "nodeports", "age"),
        [("a", 5, ("pod", "node"), True, 63.0), ("longer", 12, (), False, 2.0)],
        frozenset({"age"}),
    ),
]


def test_a_table_is_aligned_and_leaves_nothing_out() -> None:
    assert "".join(write_tables(SAMPLE)) == (
        "empty (0)\n"
        "\n"
        "sample (2)\n"
        "NAME    COUNT  CLIENTS   NODEPORTS    AGE\n"
        "a           5  pod,node  yes        1m03s\n"
        "longer     12  -         no          2.0s\n"
    )


@pytest.mark.parametrize("write", [write_json, write_yaml])
def test_documents_carry_the_same_names_and_values(write: object) -> None:
    assert callable(write)
    document = "".join(write(SAMPLE))
    found = json.loads(document) if write is write_json else yaml.safe_load(document)
    assert found == {
        "empty": [],
        "sample": [
            {"name": "a", "count": 5, "clients": ["pod", "node"], "nodeports": True, "age": 63.0},
            {"name": "longer", "count": 12, "clients": [], "nodeports": False, "age": 2.0},
        ],
    }


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0.04, "0.0s"), (59.9, "59.9s"), (303, "5m03s"), (7500, "2h05m"), (273_600, "3d04h")],
)
def test_durations_are_short(seconds: float, text: str) -> None:
    assert duration_text(seconds) == text
