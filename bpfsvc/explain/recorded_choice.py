"""The endpoint that a scheduler gives, worked out from recorded entries (bpf/path/schedule).

Chance decides ``random`` and ``twos``, the next connection ``rr``, and what an address keeps
``lblc`` and ``lblcr``: there the choice is left open. So it is for a hash of a port, because a
question has no port of the client.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator
from socket import IPPROTO_UDP
from typing import NamedTuple

from bpfsvc.datapath.maps.backend_loads import Load
from bpfsvc.services.entries import Policies, Policy
from bpfsvc.services.plans.applied import Applied
from bpfsvc.services.scheduling.extra import COMPARED, PLACE_BYTES, TABLE_CHUNK, candidate_rows
from bpfsvc.services.scheduling.hashes import FIRST_KEY, folded, hsiphash, multiplicative_hash
from bpfsvc.services.scheduling.schedulers import NO_SLOT, Schedule

Loads = Callable[[int], Load]
"""Returns the load of a backend by the id of its counters."""

_BY_PORT = (Schedule.SOURCE_PORT, Schedule.MAGLEV_PORT)
_MULTIPLICATIVE = (Schedule.SOURCE, Schedule.SOURCE_PORT, Schedule.DESTINATION)

_DELAY = (Schedule.SED, Schedule.NQ)
"""Schedules that compare active connections, and the new one; others count inactive ones, too."""


def hashed(schedule: Schedule, client: bytes, asked: bytes, port: int | None = None) -> int | None:
    """Return the number that a hash schedule gives; None for other ones, or without the port."""
    if schedule in _BY_PORT and port is None:
        return None
    value = folded(asked if schedule is Schedule.DESTINATION else client)
    value += (port or 0) if schedule in _BY_PORT else 0
    if schedule in _MULTIPLICATIVE:
        return multiplicative_hash(value)
    is_maglev = schedule in (Schedule.MAGLEV, Schedule.MAGLEV_PORT)
    return hsiphash(value, FIRST_KEY) if is_maglev else None


class Choosing(NamedTuple):
    """The backends among which a policy of a service port chooses.

    ``number``: of a hash. ``keeps``: True if the address may keep its backends.
    """

    owner: Applied
    policies: Policies
    policy: Policy
    number: int | None
    keeps: bool
    loads: Loads

    def slot(self) -> int | None:
        """Return the slot of the policy that is chosen; None: open; ``NO_SLOT``: refused."""
        if Schedule(self.policies.schedule).counts:
            return self._least_loaded()
        places = self.policy.table or self.policy.size
        number = 0 if places == 1 else self.number
        if number is None:
            return None
        return self._in_table(number % places) if self.policy.table else number % places

    def is_full(self, protocol: int) -> list[bool]:
        """Return of each slot whether its backend has as many connections as it may have."""
        limit = self.policies.limit
        if not limit:
            return [False] * self.policy.size
        return [number >= limit for number in self._open(protocol)]

    def roomiest(self, protocol: int) -> int | None:
        """Return the slot with the fewest open connections; None where chance compares a part."""
        if self.policy.size > COMPARED:
            return None
        numbers = [*self._open(protocol)]
        return numbers.index(min(numbers))

    def _open(self, protocol: int) -> Iterator[int]:
        for load in self._slot_loads():
            yield load.inactive if protocol == IPPROTO_UDP else load.active

    def _slot_loads(self) -> Iterator[Load]:
        ids = [counters for _, _, counters, _ in self.owner.records()]
        first, size = self.policy[:2]
        return map(self.loads, ids[first : first + size])

    def _in_table(self, number: int) -> int:
        chunk, row = divmod(number, TABLE_CHUNK)
        tables = self.owner.extra["schedule_tables"]
        (run,) = (run for first, at, run in tables if (first, at) == (self.policy.first, chunk))
        (slot,) = struct.unpack_from("=H", run, row * PLACE_BYTES)
        return int(slot)

    def _least_loaded(self) -> int | None:
        """Return the first of the slots that cost least for their weight (loads.h)."""
        schedule = Schedule(self.policies.schedule)
        draws = self.policy.size > COMPARED and schedule is not Schedule.OVF
        if draws or schedule is Schedule.TWOS or (schedule.is_local and self.keeps):
            return None
        best_cost, best_weight, best = 0, 1, NO_SLOT
        compared = zip(self._slot_loads(), self._weights(), strict=False)
        for slot, (load, weight) in enumerate(compared):
            if schedule is Schedule.OVF and load.active > weight:
                continue
            cost = _cost(schedule, load)
            if best == NO_SLOT or cost * best_weight < best_cost * weight:
                best_cost, best_weight, best = cost, weight, slot
        return best

    def _weights(self) -> list[int]:
        """Return the weights of the backends in the first entry of candidates."""
        candidates = self.owner.extra.get("candidates", ())
        key = (self.policy.first, 0)
        runs = (run for first, chunk, run in candidates if (first, chunk) == key)
        return [weight for run in runs for _, weight in candidate_rows(run)]


def _cost(schedule: Schedule, load: Load) -> int:
    if schedule is Schedule.OVF or (schedule is Schedule.NQ and load.active <= 0):
        return 0
    return load.active + 1 if schedule in _DELAY else 256 * load.active + load.inactive
