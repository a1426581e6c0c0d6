"""The kernel's rows against what was written there: what somebody else changed, and its repair.

Pure. Rows are read as a stream and each is judged by the service port it names, so that the
comparison of a hundred thousand rows needs no second copy of them.
"""

from __future__ import annotations

from collections.abc import Iterable

from bpfsvc.plan import (
    PHASES,
    BackendRow,
    BackendSlot,
    FrontendRow,
    Plan,
    Position,
    PositionRow,
    RangeRow,
    ServiceName,
    spare_frontends,
)
from bpfsvc.programmed import Ledger, Programmed


def repair(
    ledger: Ledger,
    names: Iterable[ServiceName],
    frontends: Iterable[FrontendRow],
    backends: Iterable[BackendRow],
    positions: Iterable[PositionRow] = (),
    ranges: Iterable[RangeRow] = (),
) -> tuple[Plan, int]:
    """Give the plan that mends the kernel's rows, and the number of rows that differ."""
    of_id = {one.service_id: one for one in ledger}
    plan = Plan()
    _check_names(plan, of_id, names)
    _check_backends(plan, of_id, backends)
    _check_positions(plan, of_id, positions)
    _check_ranges(plan, of_id, ranges)
    _check_frontends(plan, of_id, frontends)
    return plan, sum(len(getattr(plan, phase)) for phase in PHASES)


def _check_names(plan: Plan, of_id: dict[int, Programmed], names: Iterable[ServiceName]) -> None:
    missing = dict(of_id)
    for name in names:
        owner = of_id.get(name.service_id)
        if owner is None:
            plan.names_deleted.append(name.service_id)
        elif (owner.port, owner.number) == (name.port, name.number):
            del missing[name.service_id]
    plan.names_put += (ServiceName(id_, one.port, one.number) for id_, one in missing.items())


def _check_backends(plan: Plan, of_id: dict[int, Programmed], rows: Iterable[BackendRow]) -> None:
    right: dict[int, int] = dict.fromkeys(of_id, 0)
    for row in rows:
        owner = of_id.get(row.service_id)
        if owner is None or row.generation != owner.generation or row.slot >= owner.size:
            plan.backends_deleted.append(BackendSlot(*row[:3]))
        elif owner.row(row.slot) == row:
            right[row.service_id] += 1
    for service_id, count in right.items():
        owner = of_id[service_id]
        if count != owner.size:
            plan.backends_put += (BackendRow(*owner.row(slot)) for slot in range(owner.size))


def _check_positions(plan: Plan, of_id: dict[int, Programmed], rows: Iterable[PositionRow]) -> None:
    accounted = {id_: 0 for id_, one in of_id.items() if one.has_affinity}
    """How many slots the rows of each service port with affinity give."""
    for position, slots in rows:
        owner = of_id.get(position.service_id)
        count = 0
        if owner and position.service_id in accounted and position.generation == owner.generation:
            count = owner.accounted(position[2:], slots)
        if count:
            accounted[position.service_id] += count
        else:
            plan.positions_deleted.append(position)
    for service_id, count in accounted.items():
        owner = of_id[service_id]
        if count != owner.size:
            plan.positions_put += (
                PositionRow(Position(service_id, owner.generation, *place), slots)
                for place, slots in owner.positions().items()
            )
    written = {row.position for row in plan.positions_put}
    plan.positions_deleted = [one for one in plan.positions_deleted if one not in written]


def _check_ranges(plan: Plan, of_id: dict[int, Programmed], rows: Iterable[RangeRow]) -> None:
    missing = {RangeRow(id_, each) for id_, one in of_id.items() for each in one.ranges}
    for row in rows:
        if row in missing:
            missing.remove(row)
        else:
            plan.ranges_deleted.append(row)
    plan.ranges_put += missing


def _check_frontends(plan: Plan, of_id: dict[int, Programmed], rows: Iterable[FrontendRow]) -> None:
    right: dict[int, int] = dict.fromkeys(of_id, 0)
    """A bit for each frontend of a service port, in the order the ledger has them."""
    for row in rows:
        owner = of_id.get(row.service_id)
        frontends = owner.frontends() if owner else {}
        wanted = frontends.get(row.frontend)
        if owner and wanted == row.policies and owner.generation == row.generation:
            right[row.service_id] |= 1 << list(frontends).index(row.frontend)
        elif wanted is None:
            plan.frontends_deleted.append(row.frontend)
    for service_id, bits in right.items():
        owner = of_id[service_id]
        plan.frontends_put += (
            FrontendRow(frontend, service_id, owner.generation, policies)
            for bit, (frontend, policies) in enumerate(owner.frontends().items())
            if not bits >> bit & 1
        )
    spare_frontends(plan)
