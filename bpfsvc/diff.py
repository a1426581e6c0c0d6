"""Rows now, rows wanted -> the plan that leads from one to the other.

Backends are never changed in place: a service port whose backends differ gets all of them anew
under a generation of its own, and its frontends flip to it one atomic write each. So a packet
meets either all old or all new backends. Positions belong to a generation as its backends do, so
a service port that gets or loses affinity is written anew as well. Where the backends stay, only
the frontends that differ are written.

Ranges of clients have no generations: new ones are added before the frontends flip and old ones
go after it, and between the two a client of either is served.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from bpfsvc.errors import MapFull
from bpfsvc.ids import Ids
from bpfsvc.plan import (
    BackendRow,
    BackendSlot,
    EndpointRow,
    FrontendRow,
    Plan,
    Position,
    PositionRow,
    RangeRow,
    ServiceName,
    spare_frontends,
)
from bpfsvc.programmed import Programmed, flat, has_affinity, programmed
from bpfsvc.rows import Backend, Place, PortRows, ServicePort, ServiceRows


def plan(now: Mapping[ServicePort, Programmed], wanted: ServiceRows, ids: Ids) -> Plan:
    """Lead one Service from ``now`` to ``wanted``, or any number of service ports.

    Raises :class:`MapFull` when the counters run out; nothing is taken from ``ids`` then but a
    generation and a service id, of which there are plenty.
    """
    steps = Plan()
    try:
        for port, rows in wanted.items():
            _change(steps, port, now.get(port), rows, ids)
    except MapFull:
        ids.free_counters(steps.counters_taken)
        raise
    for port, was in now.items():
        if port not in wanted:
            _remove(steps, was)
    return spare_frontends(steps)


def _change(
    steps: Plan, port: ServicePort, was: Programmed | None, rows: PortRows, ids: Ids
) -> None:
    if was is None:
        _renew(steps, port, None, rows, ids.new_service(), ids)
    elif (was.backends(), was.has_affinity) != (
        rows.backends,
        has_affinity(rows.frontends.values()),
    ):
        _renew(steps, port, was, rows, was.service_id, ids)
    else:
        _touch_up(steps, was, rows)


def _renew(
    steps: Plan,
    port: ServicePort,
    was: Programmed | None,
    rows: PortRows,
    service_id: int,
    ids: Ids,
) -> None:
    """Write everything under a new generation; an endpoint that stays keeps its counters."""
    generation = ids.new_generation()
    old_counters = was.counters() if was else {}
    counters: dict[Place, int] = {}
    slots = []
    for slot, backend in enumerate(rows.backends):
        place = backend.place
        if place not in counters:
            counters[place] = _counter(steps, backend, port.protocol, old_counters, ids)
        slots.append((backend, counters[place]))
        steps.backends_put.append(
            BackendRow(service_id, generation, slot, *place, counters[place], backend.hairpin)
        )
    new = programmed(port, rows.number, service_id, generation, slots, rows.frontends, rows.ranges)
    steps.positions_put += (
        PositionRow(Position(service_id, generation, *place), found)
        for place, found in new.positions().items()
    )
    _put_name(steps, was, new)
    _change_ranges(steps, was, new)
    steps.frontends_put += (
        FrontendRow(frontend, service_id, generation, policies)
        for frontend, policies in rows.frontends.items()
    )
    if was:
        steps.frontends_deleted += (one for one in was.frontends() if one not in rows.frontends)
        _delete_backends(steps, was)
        _leave(steps, was, [one for one in old_counters if one not in counters])
    steps.programmed[port] = new


def _counter(
    steps: Plan, backend: Backend, protocol: int, old: Mapping[Place, int], ids: Ids
) -> int:
    if backend.place in old:
        return old[backend.place]
    counter = ids.take_counter()
    steps.counters_taken.append(counter)
    steps.endpoints_put.append(EndpointRow(*backend.place, protocol))
    return counter


def _touch_up(steps: Plan, was: Programmed, rows: PortRows) -> None:
    """Keep backends and generation; write what differs in names, ranges and frontends."""
    old = was.frontends()
    if (old, was.number, was.ranges) == (rows.frontends, rows.number, rows.ranges):
        return
    new = was._replace(
        number=rows.number,
        flat_frontends=flat(rows.frontends),
        ranges=rows.ranges,
    )
    _put_name(steps, was, new)
    _change_ranges(steps, was, new)
    steps.frontends_put += (
        FrontendRow(frontend, was.service_id, was.generation, policies)
        for frontend, policies in rows.frontends.items()
        if old.get(frontend) != policies
    )
    steps.frontends_deleted += (one for one in old if one not in rows.frontends)
    steps.programmed[was.port] = new


def _remove(steps: Plan, was: Programmed) -> None:
    steps.frontends_deleted += was.frontends()
    steps.ranges_deleted += (RangeRow(was.service_id, one) for one in was.ranges)
    _delete_backends(steps, was)
    steps.names_deleted.append(was.service_id)
    _leave(steps, was, was.counters())
    steps.programmed[was.port] = None


def _leave(steps: Plan, was: Programmed, places: Iterable[Place]) -> None:
    counters = was.counters()
    for place in places:
        steps.counters_freed.append(counters[place])
        steps.endpoints_left.append(EndpointRow(*place, was.port.protocol))


def _change_ranges(steps: Plan, was: Programmed | None, new: Programmed) -> None:
    old, now = set(was.ranges if was else ()), set(new.ranges)
    steps.ranges_put += (RangeRow(new.service_id, one) for one in now - old)
    steps.ranges_deleted += (RangeRow(new.service_id, one) for one in old - now)


def _put_name(steps: Plan, was: Programmed | None, new: Programmed) -> None:
    if was is None or was.number != new.number:
        steps.names_put.append(ServiceName(new.service_id, new.port, new.number))


def _delete_backends(steps: Plan, was: Programmed) -> None:
    steps.backends_deleted += (
        BackendSlot(was.service_id, was.generation, slot) for slot in range(was.size)
    )
    steps.positions_deleted += (
        Position(was.service_id, was.generation, *place) for place in was.positions()
    )
