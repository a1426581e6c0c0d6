"""What a former agent left in the kernel, taken over instead of written anew.

The former agent may have died anywhere in a plan, so its rows are believed only where they agree:
a service port is adopted with the newest generation its frontends refer to, if all slots of that
generation are there. Everything else is a stray. Strays still carry traffic, so they are not
deleted here but made into a plan, to be merged with the plan of the first complete sync: its
order then puts the new rows before the strays go, and spares the frontends that are still wanted.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
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
    names: Sequence[ServiceName],
    frontends: Sequence[FrontendRow],
    backends: Sequence[BackendRow],
    ids: Ids,
) -> Adopted:
    """Sort the kernel's rows into service ports and strays, and let ``ids`` go on behind them."""
    candidates = _candidates(names, frontends, backends)
    taken = _without_shared_counters(candidates)
    ids.adopt(
        {row.service_id for rows in (names, frontends, backends) for row in rows},
        {row.generation for rows in (frontends, backends) for row in rows},
        {counter for one in taken for counter in one.counters().values()},
    )
    return Adopted(taken, _strays(taken, names, frontends, backends))


def _candidates(
    names: Sequence[ServiceName],
    frontends: Sequence[FrontendRow],
    backends: Sequence[BackendRow],
) -> list[Programmed]:
    """Put together each service port whose rows are complete."""
    slots: dict[int, dict[int, dict[int, BackendRow]]] = defaultdict(lambda: defaultdict(dict))
    for backend in backends:
        slots[backend.service_id][backend.generation][backend.slot] = backend
    answers: dict[int, list[FrontendRow]] = defaultdict(list)
    for frontend in frontends:
        answers[frontend.service_id].append(frontend)
    holders = Counter(name.port for name in names)
    found = (
        _assemble(name, answers[name.service_id], slots[name.service_id])
        for name in names
        if holders[name.port] == 1
    )
    return [one for one in found if one is not None]


def _assemble(
    name: ServiceName,
    frontends: Sequence[FrontendRow],
    generations: Mapping[int, Mapping[int, BackendRow]],
) -> Programmed | None:
    generation = max((row.generation for row in frontends), default=max(generations, default=0))
    current = {row.frontend: row.policies for row in frontends if row.generation == generation}
    rows = generations.get(generation, {})
    if set(rows) != set(range(len(rows))) or _reach(current.values()) > len(rows):
        return None
    slots = [
        (Backend(rows[slot].address, rows[slot].port), rows[slot].counter)
        for slot in range(len(rows))
    ]
    return programmed(name.port, name.number, name.service_id, generation, slots, current)


def _reach(policies: Iterable[Policies]) -> int:
    """Give the number of slots that the policies need."""
    return max((one.first + one.size for three in policies for one in three), default=0)


def _without_shared_counters(candidates: Iterable[Programmed]) -> tuple[Programmed, ...]:
    """Drop every service port that shares the counters of a backend with another backend."""
    candidates = list(candidates)
    pairs = {
        (counter, one.service_id, backend) for one in candidates for backend, counter in one.pairs()
    }
    backends_of = Counter(counter for counter, _, _ in pairs)
    return tuple(
        one
        for one in candidates
        if all(backends_of[counter] == 1 for counter in one.counters().values())
    )


def _strays(
    taken: Iterable[Programmed],
    names: Iterable[ServiceName],
    frontends: Iterable[FrontendRow],
    backends: Iterable[BackendRow],
) -> Plan:
    generation_of = {one.service_id: one.generation for one in taken}
    return Plan(
        frontends_deleted=[
            row.frontend for row in frontends if generation_of.get(row.service_id) != row.generation
        ],
        backends_deleted=[
            BackendSlot(row.service_id, row.generation, row.slot)
            for row in backends
            if generation_of.get(row.service_id) != row.generation
        ],
        names_deleted=[row.service_id for row in names if row.service_id not in generation_of],
    )
