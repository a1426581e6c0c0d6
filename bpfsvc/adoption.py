"""What a former agent left in the kernel, taken over instead of written anew.

The former agent may have died anywhere in a plan, so its rows are believed only where they agree:
a service port is adopted with the newest generation its frontends refer to, if all slots of that
generation are there. Everything else is a stray. Strays still carry traffic, so they are not
deleted here but made into a plan, to be merged with the plan of the first complete sync: its
order then puts the new rows before the strays go, and spares the frontends that are still wanted.
"""

from __future__ import annotations

import struct
from collections import Counter
from collections.abc import Iterable
from typing import NamedTuple

from bpfsvc.ids import Ids
from bpfsvc.plan import BackendRow, BackendSlot, FrontendRow, Plan, ServiceName
from bpfsvc.programmed import Programmed, programmed
from bpfsvc.rows import Backend, Policies


class Adopted(NamedTuple):
    """The service ports taken over, and a plan that only deletes: the strays."""

    programmed: tuple[Programmed, ...]
    strays: Plan


def adopt(
    names: Iterable[ServiceName],
    frontends: Iterable[FrontendRow],
    backends: Iterable[BackendRow],
    ids: Ids,
) -> Adopted:
    """Sort the kernel's rows into service ports and strays, and let ``ids`` go on behind them."""
    found = _Found(list(names), _by_service(frontends), _by_generation(backends))
    taken = _without_shared_counters(_candidates(found))
    ids.adopt(
        {
            *(one.service_id for one in found.names),
            *found.frontends,
            *(id_ for id_, _ in found.slots),
        },
        {
            *(row.generation for rows in found.frontends.values() for row in rows),
            *(generation for _, generation in found.slots),
        },
        {counter for one in taken for counter in one.counters().values()},
    )
    return Adopted(taken, _strays(taken, found))


_SLOT = struct.Struct("=I16sHI")
"""Slot, address, port, counter id."""


class _Found(NamedTuple):
    """The kernel's rows in little room: backends as one run of bytes per generation."""

    names: list[ServiceName]
    frontends: dict[int, list[FrontendRow]]
    slots: dict[tuple[int, int], bytearray]


def _by_service(rows: Iterable[FrontendRow]) -> dict[int, list[FrontendRow]]:
    found: dict[int, list[FrontendRow]] = {}
    for row in rows:
        found.setdefault(row.service_id, []).append(row)
    return found


def _by_generation(rows: Iterable[BackendRow]) -> dict[tuple[int, int], bytearray]:
    found: dict[tuple[int, int], bytearray] = {}
    for row in rows:
        packed = _SLOT.pack(row.slot, row.address, row.port, row.counter)
        found.setdefault((row.service_id, row.generation), bytearray()).extend(packed)
    return found


def _candidates(found: _Found) -> list[Programmed]:
    """Put together each service port whose rows are complete."""
    newest: dict[int, int] = {}
    for service_id, generation in found.slots:
        newest[service_id] = max(generation, newest.get(service_id, 0))
    holders = Counter(name.port for name in found.names)
    assembled = (
        _assemble(name, found, newest.get(name.service_id, 0))
        for name in found.names
        if holders[name.port] == 1
    )
    return [one for one in assembled if one is not None]


def _assemble(name: ServiceName, found: _Found, newest: int) -> Programmed | None:
    frontends = found.frontends.get(name.service_id, ())
    generation = max((row.generation for row in frontends), default=newest)
    current = {row.frontend: row.policies for row in frontends if row.generation == generation}
    packed = found.slots.get((name.service_id, generation), b"")
    slots = sorted(_SLOT.iter_unpack(packed))
    if [slot for slot, *_ in slots] != list(range(len(slots))):
        return None
    if _reach(current.values()) > len(slots):
        return None
    pairs = [(Backend(address, port), counter) for _, address, port, counter in slots]
    return programmed(name.port, name.number, name.service_id, generation, pairs, current)


def _reach(policies: Iterable[Policies]) -> int:
    """Give the number of slots that the policies need."""
    return max((one.first + one.size for three in policies for one in three), default=0)


def _without_shared_counters(candidates: list[Programmed]) -> tuple[Programmed, ...]:
    """Drop every service port that shares the counters of a backend with another backend."""
    users = Counter(counter for one in candidates for counter in one.counters().values())
    return tuple(
        one for one in candidates if all(users[counter] == 1 for counter in one.counters().values())
    )


def _strays(taken: Iterable[Programmed], found: _Found) -> Plan:
    generation_of = {one.service_id: one.generation for one in taken}
    return Plan(
        frontends_deleted=[
            row.frontend
            for service_id, rows in found.frontends.items()
            for row in rows
            if generation_of.get(service_id) != row.generation
        ],
        backends_deleted=[
            BackendSlot(service_id, generation, slot)
            for (service_id, generation), packed in found.slots.items()
            if generation_of.get(service_id) != generation
            for slot, *_ in _SLOT.iter_unpack(packed)
        ],
        names_deleted=[
            name.service_id for name in found.names if name.service_id not in generation_of
        ],
    )
