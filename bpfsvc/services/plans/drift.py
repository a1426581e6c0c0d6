"""Drift: what another program changed in the kernel's maps, and the plan that repairs it.

Pure. Entries are read as a stream and summed up by service id, so that the comparison of a hundred
thousand entries needs no second copy of them. Only where the sums differ, which they hardly ever
do, the stream is read again and the entries of those service ids are looked at one by one.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Mapping
from typing import Any

from bpfsvc.services.plans.applied import Applied, AppliedState
from bpfsvc.services.plans.plan import Plan
from bpfsvc.services.plans.registry import MAPS
from bpfsvc.services.service_map import Read, ServiceMap


def find_drift(state: AppliedState, read: Read, spared: Collection[int] = ()) -> tuple[Plan, int]:
    """Return the plan that repairs the kernel's entries, and the number of entries that differ.

    ``spared``: service ids that may have other entries.

    The counts of maps that are counted are not compared here
    (:meth:`bpfsvc.datapath.maps.service_maps.ServiceMaps.set_uses`).
    """
    owners = {service_map.service_id: service_map for service_map in state}
    plan = Plan()
    for service_map in MAPS:
        if not service_map.counted:
            differing = _differing(service_map, owners, read).difference(spared)
            if differing:
                _repair(plan, service_map, owners, differing, read)
    plan.keep_moved()
    return plan, len(plan)


def _differing(service_map: ServiceMap[Any], owners: Mapping[int, Applied], read: Read) -> set[int]:
    """Return the service ids that have other entries than were written."""
    if service_map.by_kernel:
        return {entry.service_id for entry in read(service_map)} - owners.keys()
    sums: dict[int, int] = {}
    for entry in read(service_map):
        sums[entry.service_id] = sums.get(entry.service_id, 0) + hash(entry)
    differing = {
        service_id
        for service_id, owner in owners.items()
        if sums.pop(service_id, 0) != sum(map(hash, service_map.entries(owner)))
    }
    return differing.union(sums)


def _repair(
    plan: Plan,
    service_map: ServiceMap[Any],
    owners: Mapping[int, Applied],
    differing: set[int],
    read: Read,
) -> None:
    """Plan the repair of some service ids.

    If an entry of a generation is missing, all entries of the generation are put again.
    """
    held = defaultdict(set)
    for entry in read(service_map):
        if entry.service_id in differing:
            held[entry.service_id].add(entry)
    for service_id in differing:
        owner = owners.get(service_id)
        wanted = list(service_map.entries(owner)) if owner else []
        missing = [entry for entry in wanted if entry not in held[service_id]]
        plan.puts(service_map).extend(wanted if missing and service_map.has_generation else missing)
        keys = set(map(service_map.key, wanted))
        plan.deletes(service_map).extend({*map(service_map.key, held[service_id])} - keys)
