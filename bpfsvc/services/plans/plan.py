"""Operations on the kernel's maps, in an order that is safe after every operation.

Packets are looked up while entries are being written, and the writer may die between any two
writes. So a plan has phases. Entries that no frontend refers to yet are put first (names,
endpoints, source ranges, the backends of a new generation and their positions). Then the frontends
flip to them. Then old frontends are deleted, and last the entries that no frontend refers to any
longer. One plan is for many service ports; the order inside a phase is free, so writes can be
batched.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

from bpfsvc.services.entries import ServicePort
from bpfsvc.services.plans.applied import Applied
from bpfsvc.services.plans.registry import MAPS
from bpfsvc.services.service_map import E, ServiceMap

_Lists = defaultdict[ServiceMap[Any], list[Any]]


@dataclass(slots=True)
class Plan:
    """Entries to put and keys to delete, by map.

    In a counted map, an entry is put once for each service port that begins to use it, and deleted
    once for each service port that ceases to; the last deletion removes it in the kernel.
    ``counters_taken`` are ids of counters that must start from zero: reset them first.
    ``counters_freed`` may be used again, and ``applied`` holds, once all is executed.
    """

    _puts: _Lists = field(default_factory=lambda: defaultdict(list))
    _deletes: _Lists = field(default_factory=lambda: defaultdict(list))
    counters_taken: list[int] = field(default_factory=list)
    counters_freed: list[int] = field(default_factory=list)
    applied: dict[ServicePort, Applied | None] = field(default_factory=dict)
    """What the kernel holds of each service port once the plan is done; None when it is gone."""

    def puts(self, service_map: ServiceMap[E]) -> list[E]:
        """Return the list of entries to put into a map; a caller may add to it."""
        return self._puts[service_map]

    def deletes(self, service_map: ServiceMap[Any]) -> list[Any]:
        """Return the list of keys to delete in a map; a caller may add to it."""
        return self._deletes[service_map]

    def put_phases(self) -> Iterator[tuple[ServiceMap[Any], list[Any]]]:
        """Yield the maps with entries to put, in the order in which that must be done."""
        return (
            (service_map, self._puts[service_map])
            for service_map in MAPS
            if self._puts.get(service_map)
        )

    def delete_phases(self) -> Iterator[tuple[ServiceMap[Any], list[Any]]]:
        """Yield the maps with keys to delete, in the order in which that must be done."""
        return (
            (service_map, self._deletes[service_map])
            for service_map in reversed(MAPS)
            if self._deletes.get(service_map)
        )

    def __len__(self) -> int:
        """Return the number of operations."""
        return sum(map(len, self._puts.values())) + sum(map(len, self._deletes.values()))

    @property
    def frees(self) -> bool:
        """True if a map has more room once the plan is done."""
        return any(
            len(keys) > len(self._puts.get(service_map, ()))
            for service_map, keys in self._deletes.items()
        )

    def keep_moved(self) -> Plan:
        """Do not delete a key that the same plan puts for another service port.

        A frontend that passes from one service port to another is only put: the deletion comes
        last, and would delete the entry of the new owner.
        """
        for service_map, keys in self._deletes.items():
            if service_map.changes_hands and keys:
                kept = set(map(service_map.key, self._puts.get(service_map, ())))
                keys[:] = [key for key in keys if key not in kept]
        return self


def merge_deletes(plans: Iterable[Plan]) -> Plan:
    """Return a plan with what all of these plans delete."""
    merged = Plan()
    for plan in plans:
        for service_map, keys in plan.delete_phases():
            merged.deletes(service_map).extend(keys)
    return merged
