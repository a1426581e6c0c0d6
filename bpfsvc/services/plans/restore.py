"""Service ports that an earlier agent left in the kernel, restored instead of written anew.

The earlier agent may have died anywhere in a plan, so its entries are believed only where they
agree: a service port is restored with the newest generation its frontends refer to, if all slots of
that generation are there, the tables that its frontends refer to, and all that follows from them
(positions, where it has affinity).
Every other entry is a stray. Strays still carry traffic, so they are not deleted here but made into
a plan, to be executed after the first complete sync, which spares the frontends that are still
wanted.

The entries come in any order, and all must be known before the first is judged. An object for each
would more than double what the agent holds, in holes that it never gets rid of; so until then they
are records in one run of bytes for each map (see :class:`_Found`).
"""

from __future__ import annotations

import struct
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Generic, NamedTuple, get_type_hints

from bpfsvc.services.entries import NO_EXTRA, Backend, Extra, Frontend
from bpfsvc.services.plans.applied import Applied, applied
from bpfsvc.services.plans.ids import Ids
from bpfsvc.services.plans.plan import Plan
from bpfsvc.services.plans.registry import BACKENDS, FRONTENDS, MAPS, SERVICES, ServiceName
from bpfsvc.services.scheduling.maps import is_complete
from bpfsvc.services.service_map import E, Read, Restore, ServiceMap

_NOTHING_SHARED: Mapping[bytes, bytes] = {}

_FORMATS = {int: "I", bool: "?", bytes: "16s"}
"""How values are kept in records; bytes are addresses."""


class Restored(NamedTuple):
    """The service ports restored, and a plan that only deletes: the strays."""

    applied: tuple[Applied, ...]
    strays: Plan


def restore(read: Read, ids: Ids, shared: Mapping[bytes, bytes] = _NOTHING_SHARED) -> Restored:
    """Sort the kernel's entries into service ports and strays, and continue ``ids`` after them.

    ``shared`` has, for addresses that others keep as well, the objects to be used for them.
    """
    names = list(read(SERVICES))
    found: dict[ServiceMap[Any], _Found[Any]] = {
        one: _Found(one, read(one))
        for one in MAPS
        if one is not SERVICES and one.restore is not Restore.LATER
    }
    taken = _without_shared_counters(_candidates(names, found, shared), ids.max_backends)
    named = max((name.service_id for name in names), default=0)
    ids.restore(
        max(named, *(max(one.service_ids(), default=0) for one in found.values())),
        max(one.newest for one in found.values()),
        _counters(taken, ids.max_backends),
    )
    return Restored(taken, _strays(taken, names, found))


class _Found(Generic[E]):
    """The entries found in one map, as records of one size, end to end.

    Each record names the one before it of the same service id. Numbers and addresses are kept in
    the record, other values in a list, as few of them differ. ``newest`` is the highest generation.
    """

    def __init__(self, one: ServiceMap[E], entries: Iterable[E]) -> None:
        self.newest = 0
        self._make = one.make
        hints = get_type_hints(one.entry)
        kinds = [hints[name] for name in one.fields]
        self._key = kinds[0] if hasattr(kinds[0], "_fields") else None
        if self._key:
            inner = get_type_hints(self._key)
            kinds[:1] = [inner[name] for name in self._key._fields]
        self._shared_at = [at for at, kind in enumerate(kinds) if kind not in _FORMATS]
        self._record = struct.Struct("=i" + "".join(_FORMATS.get(kind, "I") for kind in kinds))
        self._run = bytearray()
        self._last: dict[int, int] = {}
        self._shared: list[Any] = []
        self._fill(entries, one.fields)

    def _fill(self, entries: Iterable[Any], fields: tuple[str, ...]) -> None:
        numbers: dict[Any, int] = {}
        has_generation = "generation" in fields
        for entry in entries:
            values = [*entry[0], *entry[1:]] if self._key else list(entry)
            for at in self._shared_at:
                number = numbers.setdefault(values[at], len(numbers))
                if number == len(self._shared):
                    self._shared.append(values[at])
                values[at] = number
            here = len(self._run)
            self._run += self._record.pack(self._last.get(entry.service_id, -1), *values)
            self._last[entry.service_id] = here
            if has_generation and entry.generation > self.newest:
                self.newest = entry.generation

    def of(self, service_id: int) -> Iterator[E]:
        """Yield the entries of a service id, the last found first."""
        at = self._last.get(service_id, -1)
        while at >= 0:
            at, *values = self._record.unpack_from(self._run, at)
            for each in self._shared_at:
                values[each] = self._shared[values[each]]
            if self._key:
                width = len(self._key._fields)
                values[:width] = [self._key(*values[:width])]
            yield self._make(values)

    def service_ids(self) -> Iterable[int]:
        """Return all service ids that have entries."""
        return self._last.keys()


_All = Mapping[ServiceMap[Any], _Found[Any]]


def _candidates(
    names: list[ServiceName], found: _All, shared: Mapping[bytes, bytes]
) -> list[Applied]:
    """Put together each service port whose entries are complete."""
    holders = Counter(name.port for name in names)
    assembled = (_assemble(name, found, shared) for name in names if holders[name.port] == 1)
    return [one for one in assembled if one is not None]


def _assemble(name: ServiceName, found: _All, shared: Mapping[bytes, bytes]) -> Applied | None:
    frontends = list(found[FRONTENDS].of(name.service_id))
    backends = list(found[BACKENDS].of(name.service_id))
    generation = max((entry.generation for entry in frontends or backends), default=0)
    current = {
        _sharing(entry.frontend, shared): entry.policies
        for entry in frontends
        if entry.generation == generation
    }
    slots = sorted(entry for entry in backends if entry.generation == generation)
    if [entry.slot for entry in slots] != list(range(len(slots))):
        return None
    extra = _extra(name.service_id, generation, found)
    if not is_complete(current.values(), extra, len(slots)):
        return None
    pairs = [(Backend(one.address, one.port, one.hairpin), one.counters_id) for one in slots]
    one = applied(name.port, name.number, name.service_id, generation, pairs, current, extra)
    return one if _has_derived(one, found) else None


def _sharing(frontend: Frontend, shared: Mapping[bytes, bytes]) -> Frontend:
    address, port, protocol = frontend
    return Frontend(shared.get(address, address), port, protocol)


def _extra(service_id: int, generation: int, found: _All) -> Extra:
    extra = {
        one.name: tuple(
            sorted(
                one.extra_of(entry) if one.extra_of else entry[2 if one.has_generation else 1 :]
                for entry in entries.of(service_id)
                if getattr(entry, "generation", generation) == generation
            )
        )
        for one, entries in found.items()
        if one.restore is Restore.EXTRA
    }
    return {name: entries for name, entries in extra.items() if entries} or NO_EXTRA


def _has_derived(one: Applied, found: _All) -> bool:
    """True if all entries were found that follow from those that it was put together from."""
    for each, entries in found.items():
        if each.restore is Restore.DERIVED:
            expected = set(each.entries(one))
            if expected and not expected <= set(entries.of(one.service_id)):
                return False
    return True


def _without_shared_counters(candidates: list[Applied], max_backends: int) -> tuple[Applied, ...]:
    """Drop every service port that shares the counters of a backend with another backend."""
    # A byte for each id of counters: it holds for any number of backends what a dict would not.
    users = bytearray(max_backends + 1)
    for counters_id in _counters(candidates, max_backends):
        users[counters_id] = min(users[counters_id] + 1, 2)
    return tuple(
        one
        for one in candidates
        if all(users[counters_id] == 1 for counters_id in _counters([one], max_backends))
    )


def _counters(candidates: Iterable[Applied], max_backends: int) -> Iterator[int]:
    """Yield the ids of counters, once for each backend; those beyond the array count nothing."""
    for one in candidates:
        yield from (each for each in one.counters().values() if each <= max_backends)


def _strays(taken: Iterable[Applied], names: list[ServiceName], found: _All) -> Plan:
    owners = {one.service_id: one for one in taken}
    plan = Plan()
    plan.deletes(SERVICES).extend(
        name.service_id for name in names if name.service_id not in owners
    )
    for one, entries in found.items():
        strays = plan.deletes(one)
        for service_id in entries.service_ids():
            generation = _generation(one, owners.get(service_id))
            strays.extend(
                one.key(entry)
                for entry in entries.of(service_id)
                if getattr(entry, "generation", None) != generation
            )
    return plan


def _generation(one: ServiceMap[Any], owner: Applied | None) -> int | None:
    """Return the generation that entries of a service port must have, None where entries have none.

    -1 if all of its entries are strays.
    """
    if owner is None or (
        one.restore is Restore.DERIVED and not any(True for _ in one.entries(owner))
    ):
        return -1
    return owner.generation if "generation" in one.fields else None
