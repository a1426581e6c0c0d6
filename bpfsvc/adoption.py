"""What a former agent left in the kernel, taken over instead of written anew.

The former agent may have died anywhere in a plan, so its rows are believed only where they agree:
a service port is adopted with the newest generation its frontends refer to, if all slots of that
generation are there, and their positions where it has affinity. Everything else is a stray. Strays
still carry traffic, so they are not deleted here but made into a plan, to be merged with the plan
of the first complete sync: its order then puts the new rows before the strays go, and spares the
frontends that are still wanted.

The rows come in any order, and all must be known before the first is judged. An object for each
would more than double what the agent holds, in holes that it never gets rid of; so until then they
are records in two runs of bytes (see :class:`_Chains`).
"""

from __future__ import annotations

import struct
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, NamedTuple

from bpfsvc.ids import Ids
from bpfsvc.plan import (
    BackendRow,
    BackendSlot,
    FrontendRow,
    Plan,
    Position,
    PositionRow,
    RangeRow,
    ServiceName,
)
from bpfsvc.programmed import Programmed, programmed
from bpfsvc.rows import Backend, Frontend, Network, Policies

_NOTHING_SHARED: Mapping[bytes, bytes] = {}


class Adopted(NamedTuple):
    """The service ports taken over, and a plan that only deletes: the strays."""

    programmed: tuple[Programmed, ...]
    strays: Plan


def adopt(
    names: Iterable[ServiceName],
    frontends: Iterable[FrontendRow],
    backends: Iterable[BackendRow],
    ids: Ids,
    positions: Iterable[PositionRow] = (),
    ranges: Iterable[RangeRow] = (),
    shared: Mapping[bytes, bytes] = _NOTHING_SHARED,
) -> Adopted:
    """Sort the kernel's rows into service ports and strays, and let ``ids`` go on behind them.

    ``shared`` gives, for addresses that others keep as well, the objects to be used for them.
    """
    found = _Found(
        list(names),
        _Frontends(frontends, shared),
        _Backends(backends),
        _Positions(positions),
        _by_service(ranges),
    )
    taken = _without_shared_counters(_candidates(found), ids.max_backends)
    ids.adopt(
        max(_service_ids(found), default=0),
        max(found.frontends.newest, found.backends.newest, found.positions.newest),
        _counters(taken, ids.max_backends),
    )
    return Adopted(taken, _strays(taken, found))


class _Chains:
    """Records of one size, end to end; each knows the one before it of the same service id."""

    def __init__(self, fields: str) -> None:
        self._record = struct.Struct("=i" + fields)
        self._run = bytearray()
        self._last: dict[int, int] = {}

    def add(self, service_id: int, *fields: Any) -> None:
        here = len(self._run)
        self._run += self._record.pack(self._last.get(service_id, -1), *fields)
        self._last[service_id] = here

    def of(self, service_id: int) -> Iterator[list[Any]]:
        """Go over the records of a service id, the last added first."""
        at = self._last.get(service_id, -1)
        while at >= 0:
            at, *fields = self._record.unpack_from(self._run, at)
            yield fields

    def service_ids(self) -> Iterable[int]:
        return self._last.keys()


class _Frontends:
    """Rows of map frontends. ``newest`` is the highest generation among all."""

    def __init__(self, rows: Iterable[FrontendRow], shared: Mapping[bytes, bytes]) -> None:
        self._shared = shared
        self._chains = _Chains("II16sHB")
        self._policies: list[Policies] = []
        self.newest = 0
        numbers: dict[Policies, int] = {}
        for frontend, service_id, generation, policies in rows:
            number = numbers.setdefault(policies, len(numbers))
            if number == len(self._policies):
                self._policies.append(policies)
            self._chains.add(service_id, generation, number, *frontend)
            self.newest = max(self.newest, generation)

    def of(self, service_id: int) -> Iterator[FrontendRow]:
        for generation, number, address, *rest in self._chains.of(service_id):
            frontend = Frontend(self._shared.get(address, address), *rest)
            yield FrontendRow(frontend, service_id, generation, self._policies[number])

    def service_ids(self) -> Iterable[int]:
        return self._chains.service_ids()


class _Backends:
    """Rows of map backends. ``newest`` is the highest generation among all."""

    def __init__(self, rows: Iterable[BackendRow]) -> None:
        self._chains = _Chains("II16sHIB")
        self.newest = 0
        for service_id, generation, *rest in rows:
            self._chains.add(service_id, generation, *rest)
            self.newest = max(self.newest, generation)

    def of(self, service_id: int) -> Iterator[BackendRow]:
        for fields in self._chains.of(service_id):
            yield BackendRow(service_id, *fields)

    def service_ids(self) -> Iterable[int]:
        return self._chains.service_ids()


class _Positions:
    """Rows of map positions. ``newest`` is the highest generation among all."""

    def __init__(self, rows: Iterable[PositionRow]) -> None:
        self._chains = _Chains("I16sHII")
        self.newest = 0
        for (service_id, generation, *place), slots in rows:
            self._chains.add(service_id, generation, *place, *slots)
            self.newest = max(self.newest, generation)

    def of(self, service_id: int) -> Iterator[PositionRow]:
        for generation, address, port, first, last in self._chains.of(service_id):
            yield PositionRow(Position(service_id, generation, address, port), (first, last))

    def service_ids(self) -> Iterable[int]:
        return self._chains.service_ids()


def _by_service(rows: Iterable[RangeRow]) -> dict[int, list[Network]]:
    found: dict[int, list[Network]] = defaultdict(list)
    for service_id, network in rows:
        found[service_id].append(network)
    return dict(found)


class _Found(NamedTuple):
    """The kernel's rows."""

    names: list[ServiceName]
    frontends: _Frontends
    backends: _Backends
    positions: _Positions
    ranges: dict[int, list[Network]]


def _service_ids(found: _Found) -> Iterator[int]:
    yield from (name.service_id for name in found.names)
    yield from found.frontends.service_ids()
    yield from found.backends.service_ids()
    yield from found.positions.service_ids()
    yield from found.ranges


def _candidates(found: _Found) -> list[Programmed]:
    """Put together each service port whose rows are complete."""
    holders = Counter(name.port for name in found.names)
    assembled = (_assemble(name, found) for name in found.names if holders[name.port] == 1)
    return [one for one in assembled if one is not None]


def _assemble(name: ServiceName, found: _Found) -> Programmed | None:
    frontends = list(found.frontends.of(name.service_id))
    backends = list(found.backends.of(name.service_id))
    generation = max((row.generation for row in frontends or backends), default=0)
    current = {row.frontend: row.policies for row in frontends if row.generation == generation}
    slots = sorted(row for row in backends if row.generation == generation)
    if [row.slot for row in slots] != list(range(len(slots))):
        return None
    if _reach(current.values()) > len(slots):
        return None
    pairs = [(Backend(row.address, row.port, bool(row.hairpin)), row.counter) for row in slots]
    ranges = tuple(sorted(found.ranges.get(name.service_id, ())))
    one = programmed(name.port, name.number, name.service_id, generation, pairs, current, ranges)
    return one if not one.has_affinity or _has_positions(one, found.positions) else None


def _has_positions(one: Programmed, positions: _Positions) -> bool:
    return one.size == sum(
        one.accounted(row.position[2:], row.slots)
        for row in positions.of(one.service_id)
        if row.position.generation == one.generation
    )


def _reach(policies: Iterable[Policies]) -> int:
    """Give the number of slots that the policies need."""
    return max((one.first + one.size for all_of in policies for one in all_of.by_class), default=0)


def _without_shared_counters(
    candidates: list[Programmed], max_backends: int
) -> tuple[Programmed, ...]:
    """Drop every service port that shares the counters of a backend with another backend."""
    # A byte for each id of counters: it holds for any number of backends what a dict would not.
    users = bytearray(max_backends + 1)
    for counter in _counters(candidates, max_backends):
        users[counter] = min(users[counter] + 1, 2)
    return tuple(
        one
        for one in candidates
        if all(users[counter] == 1 for counter in _counters([one], max_backends))
    )


def _counters(candidates: Iterable[Programmed], max_backends: int) -> Iterator[int]:
    """Go over the ids of counters, once for each backend; those beyond the array count nothing."""
    for one in candidates:
        yield from (counter for counter in one.counters().values() if counter <= max_backends)


def _strays(taken: Iterable[Programmed], found: _Found) -> Plan:
    generation_of = {one.service_id: one.generation for one in taken}
    keeps_positions = {one.service_id for one in taken if one.has_affinity}
    return Plan(
        frontends_deleted=[
            row.frontend
            for service_id in found.frontends.service_ids()
            for row in found.frontends.of(service_id)
            if generation_of.get(service_id) != row.generation
        ],
        ranges_deleted=[
            RangeRow(service_id, network)
            for service_id, networks in found.ranges.items()
            if service_id not in generation_of
            for network in networks
        ],
        positions_deleted=[
            row.position
            for service_id in found.positions.service_ids()
            for row in found.positions.of(service_id)
            if generation_of.get(service_id) != row.position.generation
            or service_id not in keeps_positions
        ],
        backends_deleted=[
            BackendSlot(service_id, row.generation, row.slot)
            for service_id in found.backends.service_ids()
            for row in found.backends.of(service_id)
            if generation_of.get(service_id) != row.generation
        ],
        names_deleted=[
            name.service_id for name in found.names if name.service_id not in generation_of
        ],
    )
