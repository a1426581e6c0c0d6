"""Rows now, rows wanted -> the plan that leads from one to the other.

Backends are never changed in place: a service port whose backends differ gets all of them anew
under a generation of its own, and its frontends flip to it one atomic write each. So a packet
meets either all old or all new backends. Where the backends stay, only the frontends that differ
are written.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

from bpfsvc.errors import MapFull
from bpfsvc.ids import Ids
from bpfsvc.plan import (
    BackendRow,
    BackendSlot,
    EndpointRow,
    FrontendRow,
    Plan,
    ServiceName,
    spare_frontends,
)
from bpfsvc.programmed import Programmed, programmed
from bpfsvc.rows import Backend, PortRows, ServicePort, ServiceRows


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
    elif was.backends() != rows.backends:
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
    counters: dict[Backend, int] = {}
    slots = []
    for slot, backend in enumerate(rows.backends):
        if backend not in counters:
            counters[backend] = _counter(steps, backend, port.protocol, old_counters, ids)
        slots.append((backend, counters[backend]))
        steps.backends_put.append(
            BackendRow(service_id, generation, slot, *backend, counters[backend])
        )
    new = programmed(port, rows.number, service_id, generation, slots, rows.frontends)
    _put_name(steps, was, new)
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
    steps: Plan, backend: Backend, protocol: int, old: Mapping[Backend, int], ids: Ids
) -> int:
    if backend in old:
        return old[backend]
    counter = ids.take_counter()
    steps.counters_taken.append(counter)
    steps.endpoints_put.append(EndpointRow(*backend, protocol))
    return counter


def _touch_up(steps: Plan, was: Programmed, rows: PortRows) -> None:
    """Keep backends and generation; write what differs in names and frontends."""
    old = was.frontends()
    if old == rows.frontends and was.number == rows.number:
        return
    new = was._replace(
        number=rows.number,
        flat_frontends=tuple(part for pair in rows.frontends.items() for part in pair),
    )
    _put_name(steps, was, new)
    steps.frontends_put += (
        FrontendRow(frontend, was.service_id, was.generation, policies)
        for frontend, policies in rows.frontends.items()
        if old.get(frontend) != policies
    )
    steps.frontends_deleted += (one for one in old if one not in rows.frontends)
    steps.programmed[was.port] = new


def _remove(steps: Plan, was: Programmed) -> None:
    steps.frontends_deleted += was.frontends()
    _delete_backends(steps, was)
    steps.names_deleted.append(was.service_id)
    _leave(steps, was, was.counters())
    steps.programmed[was.port] = None


def _leave(steps: Plan, was: Programmed, backends: Collection[Backend]) -> None:
    counters = was.counters()
    steps.counters_freed += (counters[one] for one in backends)
    steps.endpoints_left += (EndpointRow(*one, was.port.protocol) for one in backends)


def _put_name(steps: Plan, was: Programmed | None, new: Programmed) -> None:
    if was is None or was.number != new.number:
        steps.names_put.append(ServiceName(new.service_id, new.port, new.number))


def _delete_backends(steps: Plan, was: Programmed) -> None:
    steps.backends_deleted += (
        BackendSlot(was.service_id, was.generation, slot) for slot in range(was.size)
    )
