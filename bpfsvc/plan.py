"""Operations on the kernel's maps, in an order of which every prefix is safe.

Packets are looked up while rows are being written, and the writer may die between any two. So a
plan has phases: what nobody refers to yet is written first (names, endpoints, ranges of clients,
the backends of a new generation and their positions), then the frontends flip to it, then
frontends that are no more go, and only then what nobody refers to any longer. Plans of many
service ports are merged phase by phase; the order inside a phase is free, which is what makes
batched writes possible.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import NamedTuple

from bpfsvc.programmed import Programmed
from bpfsvc.rows import Frontend, Network, Policies, ServicePort


class ServiceName(NamedTuple):
    """Row of map services: what people call a service id. ``number`` is ``spec.ports[].port``."""

    service_id: int
    port: ServicePort
    number: int


class EndpointRow(NamedTuple):
    """Key of map endpoints, which counts the service ports that use a backend."""

    address: bytes
    port: int
    protocol: int


class BackendSlot(NamedTuple):
    """Key of map backends."""

    service_id: int
    generation: int
    slot: int


class BackendRow(NamedTuple):
    """Row of map backends: the slot, then where to, and the id of its counters."""

    service_id: int
    generation: int
    slot: int
    address: bytes
    port: int
    counter: int
    hairpin: bool = False


class Position(NamedTuple):
    """Key of map positions: a backend of one generation of a service port with affinity."""

    service_id: int
    generation: int
    address: bytes
    port: int


class PositionRow(NamedTuple):
    """Row of map positions. ``slots`` are the first and the last that the backend has."""

    position: Position
    slots: tuple[int, int]


class RangeRow(NamedTuple):
    """Row of map source_ranges: where clients of restricted frontends may stand."""

    service_id: int
    network: Network


class FrontendRow(NamedTuple):
    """Row of map frontends."""

    frontend: Frontend
    service_id: int
    generation: int
    policies: Policies


@dataclass(slots=True)
class Plan:
    """Rows to write and keys to delete; the fields stand in the order of execution.

    ``endpoints_put`` and ``endpoints_left`` name a backend once for each service port that begins
    or ceases to use it; the last to leave takes the row along.
    ``counters_taken`` are ids whose counters must start from zero: reset them in the first phase.
    ``counters_freed`` may be used again, and ``programmed`` holds, once all is executed.
    """

    names_put: list[ServiceName] = field(default_factory=list)
    endpoints_put: list[EndpointRow] = field(default_factory=list)
    counters_taken: list[int] = field(default_factory=list)
    backends_put: list[BackendRow] = field(default_factory=list)
    positions_put: list[PositionRow] = field(default_factory=list)
    ranges_put: list[RangeRow] = field(default_factory=list)
    frontends_put: list[FrontendRow] = field(default_factory=list)
    frontends_deleted: list[Frontend] = field(default_factory=list)
    ranges_deleted: list[RangeRow] = field(default_factory=list)
    positions_deleted: list[Position] = field(default_factory=list)
    backends_deleted: list[BackendSlot] = field(default_factory=list)
    endpoints_left: list[EndpointRow] = field(default_factory=list)
    names_deleted: list[int] = field(default_factory=list)

    counters_freed: list[int] = field(default_factory=list)
    programmed: dict[ServicePort, Programmed | None] = field(default_factory=dict)
    """What the kernel holds of each service port once the plan is done; None when it is gone."""

    @property
    def frees(self) -> bool:
        """Whether there is more room in the kernel once the plan is done."""
        return (
            len(self.names_deleted) > len(self.names_put)
            or len(self.frontends_deleted) > len(self.frontends_put)
            or len(self.backends_deleted) > len(self.backends_put)
            or len(self.positions_deleted) > len(self.positions_put)
            or len(self.ranges_deleted) > len(self.ranges_put)
        )

    def __bool__(self) -> bool:
        """Whether there is anything to write."""
        return any(getattr(self, name) for name in PHASES)


PHASES = (
    "names_put",
    "endpoints_put",
    "backends_put",
    "positions_put",
    "ranges_put",
    "frontends_put",
    "frontends_deleted",
    "ranges_deleted",
    "positions_deleted",
    "backends_deleted",
    "endpoints_left",
    "names_deleted",
)
"""The fields of a plan that are operations, in the order in which they must be executed."""


def spare_frontends(plan: Plan) -> Plan:
    """Take out the deletion of every frontend that the same plan writes.

    A frontend that one service port gives up and another takes over is only ever written: deleting
    it after the new owner's row was put would take the row away from the new owner.
    """
    kept = {row.frontend for row in plan.frontends_put}
    plan.frontends_deleted = [one for one in plan.frontends_deleted if one not in kept]
    return plan


def merge(plans: Iterable[Plan]) -> Plan:
    """Make one plan of several."""
    whole = Plan()
    for plan in plans:
        whole.names_put += plan.names_put
        whole.endpoints_put += plan.endpoints_put
        whole.counters_taken += plan.counters_taken
        whole.backends_put += plan.backends_put
        whole.positions_put += plan.positions_put
        whole.ranges_put += plan.ranges_put
        whole.frontends_put += plan.frontends_put
        whole.frontends_deleted += plan.frontends_deleted
        whole.ranges_deleted += plan.ranges_deleted
        whole.positions_deleted += plan.positions_deleted
        whole.backends_deleted += plan.backends_deleted
        whole.endpoints_left += plan.endpoints_left
        whole.names_deleted += plan.names_deleted
        whole.counters_freed += plan.counters_freed
        whole.programmed |= plan.programmed
    return spare_frontends(whole)
