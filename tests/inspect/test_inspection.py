"""Maps become documents: the node's own, those of other versions, in tables, JSON and YAML."""

from __future__ import annotations

import json

import pytest
import yaml

from bpfsvc.base.address import pack, pack_network
from bpfsvc.base.errors import UsageError
from bpfsvc.inspect.documents import write_json, write_yaml
from bpfsvc.inspect.maps.dump import available, dump
from bpfsvc.inspect.records import Records, Value
from bpfsvc.inspect.tables import duration_text, write_tables
from tests.inspect.inspected import BACKEND, CLIENT, VIP, frontend, shown
from tests.inspect.pinned import FIELDS, INGRESS, Maps

# -- the node --


def test_interfaces_have_names_where_they_exist() -> None:
    maps = Maps()
    maps.put("interfaces", {"value": 1}, {"v4": pack("10.0.0.1")})
    maps.put("interfaces", {"value": 999_999}, {"v6": pack("fd00::1"), "pods": 1})
    assert shown(maps, "interfaces") == [
        {"interface": "lo", "index": 1, "masquerade_v4": "10.0.0.1", "masquerade_v6": ""}
        | {"pods": False},
        {"interface": "#999999", "index": 999_999, "masquerade_v4": "", "masquerade_v6": "fd00::1"}
        | {"pods": True},
    ]


def test_settings_are_shown_as_the_options_that_set_them() -> None:
    maps = Maps()
    network, mask = pack_network("10.244.0.0/16")
    values: dict[str, int | bytes] = {"pod_network_v4": network, "pod_mask_v4": mask}
    values |= {"detect_pods_v4": 1, "masquerade_first": 10000, "masquerade_ports": 20000}
    maps.put("settings", {"value": 0}, {**values, "udp_seconds": 120, "reserved_ports": b"10000"})
    settings = {str(row["setting"]): row["value"] for row in shown(maps, "settings")}
    assert settings == {
        "pod_range_IPv4": "10.244.0.0/16",
        "pod_range_IPv6": "",
        "masquerade_ports": "10000-29999",
        "netns_cookie": 0,
        "udp_seconds": 120,
        "detect_interfaces": False,
        "node_v4": "",
        "node_v6": "",
        "reserved_ports": "10000",
    }


@pytest.mark.parametrize(
    ("setting", "number", "shown_as"),
    [
        ("socket_lb", 2, "all"),
        ("socket_lb", 9, 9),
        ("fast_path", 1, True),
        ("takeover", 0, False),
        ("icmp_interval_v4", 0xFFFFFFFF, "unlimited"),
        ("icmp_interval_v4", 1000, 1000),
    ],
)
def test_a_number_of_a_setting_has_the_name_that_its_option_has(
    setting: str, number: int, shown_as: Value
) -> None:
    """A number that this version has no name for stays one."""
    kind, key, value = FIELDS["settings"]
    maps = Maps({"settings": (kind, key, (*value, (setting, "I")))})
    maps.put("settings", {"value": 0}, {setting: number, "udp_seconds": 120})
    settings = {str(row["setting"]): row["value"] for row in shown(maps, "settings")}
    assert settings[setting] == shown_as
    assert type(settings[setting]) is type(shown_as)


def test_counters_are_events_with_reasons_summed_over_the_cpus() -> None:
    maps = Maps()
    maps.put("counters", {"value": 0}, {"dropped__no_endpoints": 2}, {"dropped__no_endpoints": 3})
    assert shown(maps, "counters") == [
        {"event": "dropped", "reason": "no endpoints", "count": 5},
        {"event": "connections reopened", "reason": "", "count": 0},
    ]


def test_sizes_shows_how_full_maps_are() -> None:
    maps = Maps()
    maps.service(1, "web")
    sizes = {row["map"]: row for row in shown(maps, "sizes")}
    assert sizes["services"] == {"map": "services", "rows": 1, "capacity": 8, "use": 12.5}
    assert "settings" not in sizes
    assert "socket_translations" not in sizes


# -- other versions --


def test_a_map_of_services_with_a_field_of_a_newer_version_is_shown_by_its_fields() -> None:
    kind, key, value = FIELDS["endpoints"]
    maps = Maps({"endpoints": (kind, key, (*value, ("weight", "I")))})
    maps.put("endpoints", frontend(BACKEND), {"value": 1, "weight": 50})
    assert shown(maps, "endpoints") == [
        {"address": "10.244.2.7", "port": 8080, "protocol": "TCP", "value": 1, "weight": 50}
    ]


def test_another_field_of_a_newer_version_is_a_further_column() -> None:
    kind, key, value = FIELDS["node_addresses"]
    maps = Maps({"node_addresses": (kind, key, (*value, ("weight", "I")))})
    maps.put("node_addresses", {"address": pack("10.0.0.1")}, {"nodeports": 1, "weight": 50})
    assert shown(maps, "node_addresses") == [
        {"address": "10.0.0.1", "nodeports": True, "weight": 50}
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
    (row,) = shown(maps, "connections")
    assert row["source"] == "10.244.1.5"
    assert row["source_port"] == 40000
    assert row["after.destination_port"] == 8080
    assert "new_connections" in available(maps.layout), "no other view shows it now"


def test_an_array_shows_its_written_elements_in_order() -> None:
    maps = Maps({"weights": ("percpu_array", (("value", "I"),), (("share", "Q"),))})
    maps.put("weights", {"value": 256}, {"share": 1}, {"share": 2})
    maps.put("weights", {"value": 1}, {"share": 4}, {"share": 0})
    maps.put("weights", {"value": 2}, {"share": 0}, {"share": 0})
    assert shown(maps, "weights") == [{"key": 1, "share": 4}, {"key": 256, "share": 3}]


def test_a_service_id_in_a_map_without_a_view_is_shown_by_its_name() -> None:
    maps = Maps({"limits": ("hash", (("service", "I"), ("class", "I")), (("rate", "I"),))})
    maps.service(1, "web", "http")
    maps.put("limits", {"service": 1, "class": 2}, {"rate": 50})
    assert shown(maps, "limits") == [{"service": "default/web:http", "class": 2, "rate": 50}]


# -- names and texts --


def test_an_unknown_map_is_an_error_that_lists_the_maps() -> None:
    with pytest.raises(UsageError) as caught:
        list(dump(Maps(), ["frontends", "fronted"]))
    assert caught.value.message == "there is no map 'fronted'; did you mean frontends?"
    assert "frontends, services, backends" in caught.value.hint
    for machinery in ("layout", "packets", "port_filters", "direct_flows"):
        assert machinery not in caught.value.hint


def test_every_map_is_shown_once_and_parts_by_the_whole() -> None:
    everything = [dumped.name for dumped in dump(Maps())]
    assert everything == [
        "frontends",
        "services",
        "backends",
        "endpoints",
        "source_ranges",
        "service_networks",
        "echo_addresses",
        "affinities",
        "positions",
        "schedule_tables",
        "candidates",
        "spills",
        "backend_loads",
        "localities",
        "connections",
        "node_addresses",
        "interfaces",
        "settings",
        "counters",
        "sizes",
        "quarantined",
        "refusals",
        "schedule_rounds",
    ]
    parts = ["new_connections", "connections", "backend_counters"]
    assert [dumped.name for dumped in dump(Maps(), parts)] == ["connections", "backends"]


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
    records = json.loads(document) if write is write_json else yaml.safe_load(document)
    assert records == {
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
