"""Entries now, entries wanted -> the plan between the two.

Backends are never changed in place. If the backends of a service port differ, all of them are put
under a new generation, and each frontend flips to it by one atomic write. So a packet meets either
all old or all new backends. Positions and tables of schedules belong to a generation as backends
do. So a service port that gets or loses affinity, or gets another table, has a new generation, too.
Otherwise only the entries that differ are written.

Source ranges have no generations: new ones are put before the frontends flip and old ones are
deleted after it, and between the two a client of either is served.
"""

from __future__ import annotations

from collections.abc import Mapping

from bpfsvc.base.errors import MapFull
from bpfsvc.services.entries import Backend, Extra, Place, PortEntries, ServiceEntries, ServicePort
from bpfsvc.services.plans.applied import Applied, applied, flat, has_affinity
from bpfsvc.services.plans.ids import Ids
from bpfsvc.services.plans.plan import Plan
from bpfsvc.services.plans.registry import MAPS


def plan(now: Mapping[ServicePort, Applied], wanted: ServiceEntries, ids: Ids) -> Plan:
    """Return the plan that turns ``now`` into ``wanted``, for any number of service ports.

    Raises :class:`MapFull` as :func:`add_changes` does.
    """
    whole = Plan()
    add_changes(whole, now, wanted, ids)
    return whole.keep_moved()


def add_changes(
    whole: Plan, now: Mapping[ServicePort, Applied], wanted: ServiceEntries, ids: Ids
) -> None:
    """Plan what turns ``now`` into ``wanted``.

    Raises :class:`MapFull` when the counters run out. Nothing is planned then, and nothing taken
    from ``ids`` but a generation and a service id; there are plenty of both.
    """
    taken: list[int] = []
    try:
        states = {
            port: _applied(port, now.get(port), entries, ids, taken)
            for port, entries in wanted.items()
        }
    except MapFull:
        ids.free_counters(taken)
        raise
    whole.counters_taken += taken
    for port, new in states.items():
        if new is not now.get(port):
            _change(whole, port, now.get(port), new)
    for port, was in now.items():
        if port not in states:
            _change(whole, port, was, None)


def _applied(
    port: ServicePort, was: Applied | None, wanted: PortEntries, ids: Ids, taken: list[int]
) -> Applied:
    """Return what the kernel should hold of a service port; ``was`` itself if that is the same.

    Ids of counters that are new are added to ``taken``.
    """
    if was is None:
        return _renewed(port, ids.new_service(), {}, wanted, ids, taken)
    sticky = has_affinity(wanted.frontends.values())
    if (was.backends(), was.has_affinity) != (wanted.backends, sticky) or (
        _of_generation(was.extra) != _of_generation(wanted.extra)
    ):
        return _renewed(port, was.service_id, was.counters(), wanted, ids, taken)
    if (was.frontends(), was.number, was.extra) == (wanted.frontends, wanted.number, wanted.extra):
        return was
    return was._replace(
        number=wanted.number, flat_frontends=flat(wanted.frontends), extra=wanted.extra
    )


def _of_generation(extra: Extra) -> Extra:
    """Return the entries that belong to a generation."""
    if not extra:
        return extra
    return {
        service_map.name: extra[service_map.name]
        for service_map in MAPS
        if service_map.has_generation and service_map.name in extra
    }


def _renewed(
    port: ServicePort,
    service_id: int,
    old_counters: Mapping[Place, int],
    wanted: PortEntries,
    ids: Ids,
    taken: list[int],
) -> Applied:
    """Return everything under a new generation; an endpoint that stays keeps its counters."""
    generation = ids.new_generation()
    counters: dict[Place, int] = {}
    slots: list[tuple[Backend, int]] = []
    for backend in wanted.backends:
        endpoint = backend[:2]
        known = counters.get(endpoint) or old_counters.get(endpoint)
        if known is None:
            known = ids.take_counter()
            taken.append(known)
        counters[endpoint] = known
        slots.append((backend, known))
    return applied(
        port, wanted.number, service_id, generation, slots, wanted.frontends, wanted.extra
    )


def _change(whole: Plan, port: ServicePort, was: Applied | None, new: Applied | None) -> None:
    """Plan what differs between two states of a service port; None: it is not there."""
    if was is None:
        if new is not None:
            _add(whole, new)
        whole.applied[port] = new
        return
    for service_map in MAPS:
        if new is None:
            whole.deletes(service_map).extend(map(service_map.key, service_map.entries(was)))
        elif service_map.has_generation and was.generation != new.generation:
            # No key can be in both, and there may be a thousand.
            whole.puts(service_map).extend(service_map.entries(new))
            whole.deletes(service_map).extend(map(service_map.key, service_map.entries(was)))
        else:
            old = {service_map.key(entry): entry for entry in service_map.entries(was)}
            now = {service_map.key(entry): entry for entry in service_map.entries(new)}
            if old != now:
                whole.puts(service_map).extend(
                    entry for key, entry in now.items() if old.get(key) != entry
                )
                whole.deletes(service_map).extend(key for key in old if key not in now)
    kept = new.counter_ids if new else set()
    whole.counters_freed += (
        service_map for service_map in was.counters().values() if service_map not in kept
    )
    whole.applied[port] = new


def _add(whole: Plan, new: Applied) -> None:
    """Plan all entries of a service port that was not there."""
    for service_map in MAPS:
        if not service_map.by_kernel and (entries := service_map.entries(new)):
            whole.puts(service_map).extend(entries)
