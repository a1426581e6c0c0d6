"""Entries of Services become records: names instead of numbers, one record for one thing."""

from __future__ import annotations

import pytest

from bpfsvc.inspect.policies import SAID
from bpfsvc.inspect.records import Value
from tests.inspect.inspected import BACKEND, VIP, frontend, policy, shown, web
from tests.inspect.pinned import Maps


def test_a_frontend_shows_each_class_of_clients_its_backends() -> None:
    maps = Maps()
    web(maps)
    value = {
        "service": 1,
        "generation": 9,
        "affinity_seconds": 60,
        "restricted": 1,
        "removal": 2,
        **policy("pod", 0, 2),
        **policy("node", 0, 2),
        **policy("other", 1, 1, masquerade=1),
    }
    maps.put("frontends", frontend(VIP), value)
    common: dict[str, Value] = {"frontend": "10.96.0.10:80/TCP", "service": "default/web:http"}
    common |= {"affinity": 60, "restricted": True, "scheduler": "random"}
    common |= {**dict.fromkeys(SAID, ""), "on_removal": "reset"}
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
def test_a_frontend_without_backends_shows_reject_or_drop(reject: int, action: str) -> None:
    maps = Maps()
    maps.service(1, "web")
    value = {"service": 1, **policy("pod", reject=reject)}
    maps.put(
        "frontends",
        frontend(VIP),
        value | policy("node", reject=reject) | policy("other", reject=reject),
    )
    (row,) = shown(maps, "frontends")
    assert (row["clients"], row["action"], row["backends"]) == (
        ("pod", "node", "other"),
        action,
        (),
    )


def test_the_guard_of_an_address_has_no_port_and_no_protocol() -> None:
    maps = Maps()
    maps.put("frontends", frontend("10.96.0.10:0", 0), {"service": 7})
    (row,) = shown(maps, "frontends")
    assert row["frontend"] == "10.96.0.10:*"


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
    (row,) = shown(maps, "frontends")
    assert row["frontend"] == name
    assert row["service"] == "#7", "an id without a name"


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
        "local": False,
    }


def test_services_and_endpoints_are_listed_by_name_and_number_of_uses() -> None:
    maps = Maps()
    maps.service(2, "web", family=6)
    maps.service(1, "web", "http")
    maps.put("endpoints", frontend(BACKEND), {"value": 3})
    assert [(row["id"], row["family"]) for row in shown(maps, "services")] == [
        (2, "IPv6"),
        (1, "IPv4"),
    ]
    assert shown(maps, "endpoints") == [{"endpoint": "10.244.2.7:8080/TCP", "uses": 3}]
