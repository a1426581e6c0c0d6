"""Entries become the bytes that the C structs describe, and come back as they were."""

from __future__ import annotations

import struct
from dataclasses import replace
from typing import Any

import pytest

from bpfsvc.base.address import pack
from bpfsvc.base.errors import KernelError
from bpfsvc.base.networks import Network
from bpfsvc.datapath.maps.codec import EntryCodec
from bpfsvc.datapath.maps.layout import MapLayout, Record
from bpfsvc.services.entries import Frontend, Policies, Policy, ServicePort
from bpfsvc.services.plans import registry
from bpfsvc.services.scheduling import maps
from bpfsvc.services.scheduling.extra import PlaceRun, candidate_run
from bpfsvc.services.scheduling.maps import (
    CandidatesEntry,
    LocalityEntry,
    RoundEntry,
    ScheduleTableEntry,
    SpillEntry,
)
from bpfsvc.services.service_map import ServiceId, ServiceMap
from tests.inspect.pinned import FIELDS

ADDRESS = pack("10.0.0.1")
POLICIES = Policies(
    Policy(0, 3, False, False, 256, trials=2, spills=True),
    *(Policy(1, 2, True, False), Policy(0, 0, False, True)),
    affinity_seconds=60,
    restricted=True,
    schedule=2,
    echo=True,
    removal=1,
    watched=True,
    counted=True,
)
ENTRIES: list[tuple[ServiceMap[Any], Any]] = [
    (registry.SERVICES, registry.ServiceName(7, ServicePort("shop", "web", "http", 6, 4), 80)),
    (registry.ENDPOINTS, registry.EndpointEntry(ADDRESS, 8080, 17)),
    (registry.BACKENDS, registry.BackendEntry(7, 8, 9, ADDRESS, 8080, 11, True)),
    (registry.POSITIONS, registry.PositionEntry(7, 8, ADDRESS, 8080, (1, 2))),
    (registry.SOURCE_RANGES, registry.SourceRangeEntry(7, Network(ADDRESS, 104))),
    (registry.FRONTENDS, registry.FrontendEntry(Frontend(ADDRESS, 80, 6), 7, 8, POLICIES)),
    (registry.REFUSALS, ServiceId(7)),
    (
        maps.SCHEDULE_TABLES,
        ScheduleTableEntry(7, 8, 3, 1, PlaceRun(bytes(range(256)))),
    ),
    (maps.CANDIDATES, CandidatesEntry(7, 8, 3, 1, candidate_run([(5, 2), (6, 1)]))),
    (maps.SPILLS, SpillEntry._make((7, 8, *range(12), tuple(range(64))))),
    (maps.SCHEDULE_ROUNDS, RoundEntry(7)),
    (maps.LOCALITIES, LocalityEntry(7, ADDRESS, 2, 13)),
    (registry.ECHO_ADDRESSES, registry.EchoEntry(Network(ADDRESS, 128))),
]


def layout(name: str, *more: tuple[str, str]) -> MapLayout:
    kind, key, value = FIELDS[name]
    return MapLayout(kind, Record(key), Record((*value, *more)), max_entries=8, flags=0)


def codec(service_map: ServiceMap[Any]) -> EntryCodec[Any]:
    return EntryCodec(service_map, layout(service_map.name))


def test_every_map_is_named() -> None:
    assert {service_map for service_map, _ in ENTRIES} == set(registry.MAPS)


@pytest.mark.parametrize(
    ("service_map", "entry"), [pytest.param(*pair, id=pair[0].name) for pair in ENTRIES]
)
def test_an_entry_comes_back_as_it_was(service_map: ServiceMap[Any], entry: Any) -> None:
    key, value = codec(service_map).encode(entry)
    (decoded,) = codec(service_map).decode([(key, value)])
    assert (decoded, repr(decoded)) == (entry, repr(entry))
    assert codec(service_map).encode_key(service_map.key(entry)) == key
    assert (len(key), len(value)) == (
        layout(service_map.name).key.size,
        layout(service_map.name).value.size,
    )


def test_ports_are_in_network_order_and_other_numbers_in_that_of_the_machine() -> None:
    key, value = codec(registry.BACKENDS).encode(ENTRIES[2][1])
    assert key == struct.pack("=III", 7, 8, 9)
    assert value == ADDRESS + struct.pack("!H", 8080) + b"\1\0" + struct.pack("=I", 11)


def test_the_bits_of_a_network_are_counted_from_the_prefix_on() -> None:
    key, value = codec(registry.SOURCE_RANGES).encode(ENTRIES[4][1])
    assert key == struct.pack("=II", 32 + 104, 7) + ADDRESS
    assert value == struct.pack("=I", 1), "the value of a range is always 1"


def test_a_counter_of_the_programs_begins_at_zero() -> None:
    assert codec(maps.SCHEDULE_ROUNDS).encode(RoundEntry(7))[1] == bytes(16)


def test_equal_policies_become_one_object() -> None:
    item = codec(registry.FRONTENDS).encode(ENTRIES[5][1])
    first, second = codec(registry.FRONTENDS).decode([item, item])
    assert first.policies is second.policies


def test_a_layout_of_another_version_is_an_error() -> None:
    with pytest.raises(KernelError, match="the values of map backends"):
        EntryCodec(registry.BACKENDS, layout("backends", ("weight", "I")))
    with pytest.raises(KernelError, match="the keys of map backends"):
        EntryCodec(registry.BACKENDS, layout("services"))


def test_entries_of_an_earlier_build_have_the_usual_values_in_new_fields() -> None:
    """To be read, not written; a field that must be there is an error all the same."""
    _, key, value = FIELDS["frontends"]
    known = ("removal", "watched", "counted")
    record = Record(tuple(field for field in value if field[0] not in known))
    older = MapLayout("hash", Record(key), record, max_entries=8, flags=0)
    frontends = EntryCodec(registry.FRONTENDS, older, lenient=True)
    raw = record.pack({"service": 7, "generation": 8, "pod.size": 3, "affinity_seconds": 60})
    (decoded,) = frontends.decode([(bytes(older.key.size), raw)])
    assert decoded.policies == Policies(
        Policy(0, 3, False, False), *(Policy(0, 0, False, False),) * 2, affinity_seconds=60
    )
    with pytest.raises(KernelError, match="the values of map frontends"):
        EntryCodec(registry.FRONTENDS, older)
    without_slots = replace(older, value=Record(value[:2]))
    with pytest.raises(KernelError, match="the values of map frontends"):
        EntryCodec(registry.FRONTENDS, without_slots, lenient=True)


def test_fields_of_a_newer_build_are_left_out_and_named() -> None:
    newer = layout("backends", ("weight", "I"))
    backends = EntryCodec(registry.BACKENDS, newer, lenient=True)
    entry = ENTRIES[2][1]
    key, value = codec(registry.BACKENDS).encode(entry)
    assert list(backends.decode([(key, value + bytes(4))])) == [entry]
    assert backends.unknown == ("weight",)
