"""Entries of Services about clients become records: ranges, affinities, positions."""

from __future__ import annotations

import struct

from bpfsvc.base.address import pack
from bpfsvc.inspect.maps.clients import affinities
from tests.inspect.inspected import BACKEND, NOW, SECOND, records, shown
from tests.inspect.pinned import Maps, place

Fields = dict[str, int | bytes]


def test_source_ranges_are_networks_with_the_name_of_the_service() -> None:
    maps = Maps()
    maps.service(1, "web", "http")
    for bits, service, network in (
        (32 + 96 + 8, 1, "10.0.0.0"),
        (32 + 64, 2, "fd00::"),
        (32 + 128, 1, "1.2.3.4"),
    ):
        key: Fields = {"prefix": bits, "service": service, "network": pack(network)}
        maps.put("source_ranges", key, {"value": 1})
    assert shown(maps, "source_ranges") == [
        {"service": "#2", "network": "fd00::/64"},
        {"service": "default/web:http", "network": "1.2.3.4/32"},
        {"service": "default/web:http", "network": "10.0.0.0/8"},
    ]


def test_service_networks_are_networks() -> None:
    maps = Maps()
    for bits, network in ((96 + 16, "10.96.0.0"), (112, "fd96::")):
        maps.put("service_networks", {"prefix": bits, "network": pack(network)}, {"value": 1})
    assert shown(maps, "service_networks") == [
        {"network": "10.96.0.0/16"},
        {"network": "fd96::/112"},
    ]


def test_an_address_that_answers_pings_shows_how_many_service_ports_ask_for_it() -> None:
    maps = Maps()
    for address, count in (("10.96.0.10", 3), ("fd96::10", 1)):
        maps.put("echo_addresses", {"prefix": 128, "address": pack(address)}, {"value": count})
    assert shown(maps, "echo_addresses") == [
        {"address": "10.96.0.10", "service_ports": 3},
        {"address": "fd96::10", "service_ports": 1},
    ]


def test_an_affinity_shows_client_backend_and_age() -> None:
    maps = Maps()
    maps.service(1, "web", "http")
    address, port = place(BACKEND)
    maps.put(
        "affinities",
        {"service": 1, "client": pack("192.0.2.7")},
        {"backend": address, "port": port, "seen": NOW - 90 * SECOND},
    )
    assert records(affinities(maps, NOW)) == [
        {"service": "default/web:http", "client": "192.0.2.7", "backend": BACKEND, "age": 90.0}
    ]


def test_a_position_shows_the_one_or_two_slots_of_a_backend() -> None:
    maps = Maps()
    maps.service(1, "web", "http")
    address, port = place(BACKEND)
    for generation, slots in ((8, (1, 1)), (9, (0, 2))):
        key: Fields = {"service": 1, "generation": generation, "address": address, "port": port}
        maps.put("positions", key, {"slots": struct.pack("=II", *slots)})
    common = {"service": "default/web:http", "backend": BACKEND}
    assert shown(maps, "positions") == [
        {**common, "generation": 8, "slots": ("1",)},
        {**common, "generation": 9, "slots": ("0", "2")},
    ]
