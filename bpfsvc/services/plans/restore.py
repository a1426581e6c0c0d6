"""Restore service ports that an earlier agent left in the kernel.

The earlier agent may have died anywhere in a plan, so its entries are believed only where they
agree. A service port is restored with the newest generation that its frontends refer to, if all
slots of that generation are there, the entries that its frontends need, and all entries that follow
from them (positions, with affinity).
Every other entry is a stray. Strays still carry traffic. So strays are not deleted here but made
into a plan, to be executed after the first complete sync, which spares the frontends that are still
wanted.

Entries come in any order, and all must be known before the first is judged. An object for each
entry would more than double the memory of a restore (28 MB in place of 15 for 10,000 Services of 4
endpoints), in holes that the agent never gets rid of. So until then entries are packed
(:class:`_Store`).
"""

from __future__ import annotations

import struct
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Generic, NamedTuple, get_type_hints

from bpfsvc.services.entries import NO_EXTRA, Backend, Extra, Frontend
from bpfsvc.services.plans.applied import Applied, applied
from bpfsvc.services.plans.ids import Ids
from bpfsvc.services.plans.plan import Plan, merge_deletes
from bpfsvc.services.plans.registry import BACKENDS, FRONTENDS, MAPS, SERVICES, ServiceName
from bpfsvc.services.scheduling.maps import is_complete
from bpfsvc.services.service_map import E, Read, Restore, ServiceMap

_NOTHING_SHARED: Mapping[bytes, bytes] = {}

_FORMATS = {int: "I", bool: "?", bytes: "16s"}
"""How values are kept in records; bytes are addresses."""


class Restored(NamedTuple):
    """The service ports restored, and by Service a plan that only deletes: its strays.

    Strays of service ids without a name have the key None.
    """

    applied: tuple[Applied, ...]
    strays_of: Mapping[tuple[str, str] | None, Plan]

    @property
    def strays(self) -> Plan:
        """The strays of all Services."""
        return merge_deletes(self.strays_of.values())


def restore(read: Read, ids: Ids, shared: Mapping[bytes, bytes] = _NOTHING_SHARED) -> Restored:
    """Sort the kernel's entries into service ports and strays, and continue ``ids`` after them.

    ``shared`` has, for addresses that others keep as well, the objects to be used for them.
    """
    names = list(read(SERVICES))
    stores: _Stores = {
        service_map: _Store(service_map, read(service_map))
        for service_map in MAPS
        if service_map is not SERVICES and service_map.restore is not Restore.LATER
    }
    restored = _without_shared_counters(_candidates(names, stores, shared), ids.max_backends)
    highest = max((name.service_id for name in names), default=0)
    ids.restore(
        max(highest, *(max(store.service_ids(), default=0) for store in stores.values())),
        max(store.newest for store in stores.values()),
        _counters(restored, ids.max_backends),
    )
    return Restored(restored, _strays(restored, names, stores))


class _Store(Generic[E]):
    """The entries of one map: for each service id, records of one size end to end.

    Numbers and addresses are kept in a record, other values in a list, as few of them differ.
    ``newest`` is the highest generation.
    """

    def __init__(self, service_map: ServiceMap[E], entries: Iterable[E]) -> None:
        self.newest = 0
        self._make = service_map.make
        hints = get_type_hints(service_map.entry)
        kinds = [hints[name] for name in service_map.fields]
        self._key = kinds[0] if hasattr(kinds[0], "_fields") else None
        if self._key:
            inner = get_type_hints(self._key)
            kinds[:1] = [inner[name] for name in self._key._fields]
        self._shared_at = [at for at, kind in enumerate(kinds) if kind not in _FORMATS]
        self._record = struct.Struct("=" + "".join(_FORMATS.get(kind, "I") for kind in kinds))
        self._runs: defaultdict[int, bytearray] = defaultdict(bytearray)
        self._shared: list[Any] = []
        self._fill(entries, "generation" in service_map.fields)

    def _fill(self, entries: Iterable[Any], has_generation: bool) -> None:
        numbers: dict[Any, int] = {}
        for entry in entries:
            values = [*entry[0], *entry[1:]] if self._key else list(entry)
            for at in self._shared_at:
                values[at] = numbers.setdefault(values[at], len(numbers))
            self._runs[entry.service_id] += self._record.pack(*values)
            if has_generation and entry.generation > self.newest:
                self.newest = entry.generation
        self._shared = list(numbers)

    def of(self, service_id: int) -> Iterator[E]:
        """Yield the entries of a service id."""
        for record in self._record.iter_unpack(self._runs.get(service_id, b"")):
            values = list(record)
            for at in self._shared_at:
                values[at] = self._shared[values[at]]
            if self._key:
                width = len(self._key._fields)
                values[:width] = [self._key(*values[:width])]
            yield self._make(values)

    def service_ids(self) -> Iterable[int]:
        """Return all service ids that have entries."""
        return self._runs.keys()


_Stores = dict[ServiceMap[Any], _Store[Any]]


def _candidates(
    names: list[ServiceName], stores: _Stores, shared: Mapping[bytes, bytes]
) -> list[Applied]:
    """Return the service ports that are complete."""
    holders = Counter(name.port for name in names)
    assembled = (_assemble(name, stores, shared) for name in names if holders[name.port] == 1)
    return [state for state in assembled if state is not None]


def _assemble(name: ServiceName, stores: _Stores, shared: Mapping[bytes, bytes]) -> Applied | None:
    """Return what the kernel holds of a service port; None if entries are missing."""
    frontends = list(stores[FRONTENDS].of(name.service_id))
    backends = list(stores[BACKENDS].of(name.service_id))
    generation = max((entry.generation for entry in frontends or backends), default=0)
    current = {
        _sharing(entry.frontend, shared): entry.policies
        for entry in frontends
        if entry.generation == generation
    }
    slots = sorted(entry for entry in backends if entry.generation == generation)
    if [entry.slot for entry in slots] != list(range(len(slots))):
        return None
    extra = _extra(name.service_id, generation, stores)
    if not is_complete(current.values(), extra, len(slots)):
        return None
    pairs = [
        (Backend(entry.address, entry.port, entry.hairpin), entry.counters_id) for entry in slots
    ]
    state = applied(name.port, name.number, name.service_id, generation, pairs, current, extra)
    return state if _has_derived(state, stores) else None


def _sharing(frontend: Frontend, shared: Mapping[bytes, bytes]) -> Frontend:
    address, port, protocol = frontend
    return Frontend(shared.get(address, address), port, protocol)


def _extra(service_id: int, generation: int, stores: _Stores) -> Extra:
    extra = {
        service_map.name: tuple(
            sorted(
                service_map.extra(entry)
                for entry in store.of(service_id)
                if getattr(entry, "generation", generation) == generation
            )
        )
        for service_map, store in stores.items()
        if service_map.restore is Restore.EXTRA
    }
    return {name: entries for name, entries in extra.items() if entries} or NO_EXTRA


def _has_derived(state: Applied, stores: _Stores) -> bool:
    """True if all entries are there that follow from the state."""
    for service_map, store in stores.items():
        if service_map.restore is Restore.DERIVED:
            expected = set(service_map.entries(state))
            if expected and not expected <= set(store.of(state.service_id)):
                return False
    return True


def _without_shared_counters(candidates: list[Applied], max_backends: int) -> tuple[Applied, ...]:
    """Drop every service port that shares the counters of a backend with another backend."""
    # A byte for each id of counters takes the same memory for any number of backends.
    users = bytearray(max_backends + 1)
    for counters_id in _counters(candidates, max_backends):
        users[counters_id] = min(users[counters_id] + 1, 2)
    return tuple(
        state
        for state in candidates
        if all(users[counters_id] == 1 for counters_id in _counters([state], max_backends))
    )


def _counters(states: Iterable[Applied], max_backends: int) -> Iterator[int]:
    """Yield the ids of counters, once for each backend; ids beyond the array count nothing."""
    for state in states:
        for counters_id in state.counters().values():
            if counters_id <= max_backends:
                yield counters_id


def _strays(
    restored: Iterable[Applied], names: list[ServiceName], stores: _Stores
) -> dict[tuple[str, str] | None, Plan]:
    owners = {state.service_id: state for state in restored}
    services = {name.service_id: name.port[:2] for name in names}
    plans: defaultdict[tuple[str, str] | None, Plan] = defaultdict(Plan)
    for service_id, service in services.items():
        if service_id not in owners:
            plans[service].deletes(SERVICES).append(service_id)
    for service_map, store in stores.items():
        for service_id in store.service_ids():
            generation = _generation(service_map, owners.get(service_id))
            strays = [
                service_map.key(entry)
                for entry in store.of(service_id)
                if getattr(entry, "generation", None) != generation
            ]
            if strays:
                plans[services.get(service_id)].deletes(service_map).extend(strays)
    return dict(plans)


def _generation(service_map: ServiceMap[Any], owner: Applied | None) -> int | None:
    """Return the generation that entries of a service port must have, None where entries have none.

    -1 if all entries of the service port are strays.
    """
    if owner is None or (
        service_map.restore is Restore.DERIVED and not any(True for _ in service_map.entries(owner))
    ):
        return -1
    return owner.generation if "generation" in service_map.fields else None
