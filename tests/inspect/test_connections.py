"""Entries of connections become records: those that belong together are one connection."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from bpfsvc.inspect.maps.connections import connections
from bpfsvc.inspect.records import Value
from tests.inspect.inspected import BACKEND, CLIENT, NODE, NOW, OPEN, SECOND, VIP, records
from tests.inspect.pinned import EGRESS, INGRESS, Maps
from tests.services.crowd import measured


def pair(
    maps: Maps,
    table: str = "connections",
    *,
    routed_client: str = CLIENT,
    protocol: int = 6,
    **state: int,
) -> None:
    """The pair around routing: a client whose frontend is translated to a backend."""
    state = {"service": 1, "created": NOW - 60 * SECOND, "seen": NOW - 2 * SECOND} | state
    there, back = (routed_client, BACKEND), (BACKEND, routed_client)
    maps.entry(table, INGRESS, (CLIENT, VIP), there, protocol, **state)
    maps.entry(table, EGRESS, back, (VIP, CLIENT), protocol, reply=1, **state)


def one(maps: Maps) -> dict[str, Value]:
    (connection,) = records(connections(maps, NOW))
    return connection


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


def test_the_outer_pair_belongs_to_the_same_connection() -> None:
    maps = Maps()
    pair(maps, replied=1, established=1)
    maps.entry("connections", EGRESS, (CLIENT, BACKEND), (NODE, BACKEND), masquerade=1, **OPEN)
    maps.entry("connections", INGRESS, (BACKEND, NODE), (BACKEND, CLIENT), reply=1, **OPEN)
    connection = one(maps)
    assert connection["client"] == CLIENT
    assert connection["masquerade"] == NODE
    assert connection["translation"] == ("destination", "source")


def test_a_hairpin_is_one_connection_too() -> None:
    maps = Maps()
    hairpin = "10.244.2.7:40000"
    maps.entry("connections", INGRESS, (hairpin, VIP), (hairpin, BACKEND))
    maps.entry("connections", EGRESS, (BACKEND, hairpin), (VIP, hairpin), reply=1)
    maps.entry("connections", EGRESS, (hairpin, BACKEND), (NODE, BACKEND), masquerade=1)
    maps.entry("connections", INGRESS, (BACKEND, NODE), (BACKEND, hairpin), reply=1)
    connection = one(maps)
    assert (connection["client"], connection["backend"], connection["masquerade"]) == (
        hairpin,
        BACKEND,
        NODE,
    )


def test_a_masquerade_that_has_not_left_yet_is_pending() -> None:
    maps = Maps()
    pair(maps, "new_connections")
    maps.entry(
        "new_connections",
        EGRESS,
        (CLIENT, BACKEND),
        (CLIENT, BACKEND),
        masquerade=1,
        masquerade_pending=1,
    )
    assert one(maps)["masquerade"] == "pending"


def test_a_changed_source_port_is_shown() -> None:
    maps = Maps()
    pair(maps, routed_client="10.244.1.5:10001")
    connection = one(maps)
    assert connection["client"] == CLIENT
    assert connection["translation"] == ("destination", "source-port=10001")


def test_a_direct_connection_whose_port_was_changed_has_no_frontend() -> None:
    maps = Maps()
    changed = "10.244.1.5:10001"
    maps.entry("connections", INGRESS, (CLIENT, BACKEND), (changed, BACKEND))
    maps.entry("connections", EGRESS, (BACKEND, changed), (BACKEND, CLIENT), reply=1)
    connection = one(maps)
    assert (connection["frontend"], connection["service"]) == ("", "")
    assert connection["translation"] == ("source-port=10001",)


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
def test_one_entry_alone_still_shows_the_connection(lost: str) -> None:
    maps = Maps()
    if lost == "reply":
        maps.entry("new_connections", INGRESS, (CLIENT, VIP), (CLIENT, BACKEND))
    else:
        maps.entry("new_connections", EGRESS, (BACKEND, CLIENT), (VIP, CLIENT), reply=1)
    connection = one(maps)
    assert (connection["client"], connection["frontend"], connection["backend"]) == (
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
    both = records(connections(maps, NOW))
    assert [connection["client"] for connection in both] == [CLIENT, other]


def test_a_clock_read_before_the_entry_was_written_gives_no_negative_age() -> None:
    maps = Maps()
    pair(maps, created=NOW + SECOND, seen=NOW + SECOND)
    assert (one(maps)["age"], one(maps)["idle"]) == (0.0, 0.0)


@pytest.mark.slow
def test_a_hundred_thousand_entries_take_little_memory() -> None:
    maps = Maps()
    for number in range(25_000):
        client = f"10.{number >> 16}.{number >> 8 & 255}.{number & 255}:40000"
        maps.entry("connections", INGRESS, (client, VIP), (client, BACKEND), service=1)
        maps.entry("connections", EGRESS, (BACKEND, client), (VIP, client), service=1, reply=1)
    dumped, _, peak = measured(lambda: connections(maps, NOW))
    assert len(dumped.rows) == 25_000
    assert peak < 1200 * len(dumped.rows)
