"""How the description of a map says what its key is, and which entries a service port has."""

from __future__ import annotations

from socket import IPPROTO_TCP
from typing import Any, NamedTuple

from bpfsvc.services.entries import ServicePort
from bpfsvc.services.plans.applied import Applied
from bpfsvc.services.service_map import Restore, ServiceId, ServiceMap, extra_map, kernel_map


class Plain(NamedTuple):
    """An entry with the service id, and without a generation."""

    service_id: int
    address: str
    weight: int


class Versioned(NamedTuple):
    """An entry with the generation."""

    service_id: int
    generation: int
    weight: int


def applied(**extra: tuple[tuple[Any, ...], ...]) -> Applied:
    port = ServicePort("default", "web", "http", IPPROTO_TCP, 4)
    return Applied(port, 1, service_id=7, generation=3, slots=b"", flat_frontends=(), extra=extra)


def test_the_key_is_a_field_or_a_tuple_of_fields() -> None:
    maps = [
        ServiceMap("plain", Plain, fields, "", lambda _: (), Restore.EXTRA) for fields in (1, 2)
    ]
    assert [service_map.key(Plain(7, "a", 1)) for service_map in maps] == [7, (7, "a")]


def test_an_entry_has_the_ids_of_its_service_port_and_the_rest_is_its_own() -> None:
    plain = extra_map("plain", Plain, 2, "")
    versioned = extra_map("versioned", Versioned, 1, "")
    state = applied(plain=(("a", 1), ("b", 2)), versioned=((5,),))
    assert list(plain.entries(state)) == [Plain(7, "a", 1), Plain(7, "b", 2)]
    assert list(versioned.entries(state)) == [Versioned(7, 3, 5)]
    assert [plain.extra(entry) for entry in plain.entries(state)] == [("a", 1), ("b", 2)]


def test_a_service_port_without_such_entries_has_none() -> None:
    assert list(extra_map("plain", Plain, 2, "").entries(applied())) == []


def test_what_the_programs_make_is_known_by_the_service_and_stays() -> None:
    made = kernel_map("localities", "--max-localities")
    (entry,) = made.entries(applied())
    assert (entry, made.key(entry)) == (ServiceId(7), 7)
    assert (made.restore, made.by_kernel, made.option) == (
        Restore.KEPT,
        True,
        "--max-localities",
    )
