"""The maps that hold Services, each described once.

Plan, diff, restore, drift and the writing of entries (:mod:`bpfsvc.datapath.maps.service_maps`) go
through :data:`MAPS` and know no map by name, but for what only one map has. An entry is a named
tuple: first the fields of its key, then those of its value, all named as in the C struct, where
``x_id`` is ``x`` and nested names may lack their beginning. So a new map is a C header, a line
here, and the function that fills it (see :func:`extra_map`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from enum import Enum
from operator import itemgetter
from typing import Any, Generic, NamedTuple, Protocol, TypeVar

from bpfsvc.base.networks import ALL_BITS, Network
from bpfsvc.services.entries import Frontend, Policies, ServicePort
from bpfsvc.services.plans.applied import Applied
from bpfsvc.services.scheduling.schedule_entries import (
    CandidatesEntry,
    LocalityEntry,
    RoundEntry,
    ScheduleTableEntry,
    SpillEntry,
    candidate_weights,
    candidates,
    localities,
    rounds,
    spills,
)

E = TypeVar("E", bound=tuple[Any, ...])
"""The type of a map's entries."""


class Read(Protocol):
    """Reads the entries of a map, in any order."""

    def __call__(self, one: ServiceMap[E], /) -> Iterable[E]:
        """Return all entries that are in the kernel."""


class Restore(Enum):
    """What entries that an earlier agent left in the kernel are good for."""

    PART = "the entries of a service port are put together from these"
    EXTRA = "they belong to the service port as they are"
    DERIVED = "they follow from others; a service port that lacks one is written anew"
    KEPT = "they stay as they are for as long as the service port is there"
    LATER = "nothing; the next comparison for drift corrects them"


@dataclass(frozen=True, slots=True, eq=False)
class ServiceMap(Generic[E]):
    """One map.

    * ``name``: as in the C sources.
    * ``entry``: the type of its entries; the first ``key_fields`` fields are the key.
    * ``option``: enlarges the map.
    * ``entries``: returns the entries of one service port, in the same order each time.
    * ``restore``: what becomes of entries that an earlier agent left.
    * ``counted``: service ports share entries, and the kernel counts by how many each is used.
    * ``by_kernel``: the programs make the entries; the agent deletes those of service ports that
      are no more. The key is the service id.
    * ``put_once``: the programs count in the value; an entry that is there is left as it is.
    * ``extra_of``: returns what ``PortEntries.extra`` has of an entry, if that is not all fields
      but service id and generation.
    """

    name: str
    entry: type[E]
    key_fields: int
    option: str
    entries: Callable[[Applied], Iterable[E]]
    restore: Restore
    counted: bool = False
    by_kernel: bool = False
    put_once: bool = False
    extra_of: Callable[[E], tuple[Any, ...]] | None = None
    key: Callable[[E], Any] = field(init=False)
    """The function from an entry to its key: a tuple, or the only field of it."""

    def __post_init__(self) -> None:
        first = 0 if self.key_fields == 1 else slice(self.key_fields)
        object.__setattr__(self, "key", itemgetter(first))

    @property
    def make(self) -> Callable[[Iterable[Any]], E]:
        """Return the function from the values of all fields to an entry."""
        make: Callable[[Iterable[Any]], E] = self.entry._make  # type: ignore[attr-defined]
        return make

    @property
    def fields(self) -> tuple[str, ...]:
        """The names of the fields of an entry."""
        fields: tuple[str, ...] = self.entry._fields  # type: ignore[attr-defined]
        return fields

    @property
    def has_generation(self) -> bool:
        """True if each generation of a service port has entries of its own beside the others'."""
        return "generation" in self.fields[: self.key_fields]

    @property
    def changes_hands(self) -> bool:
        """True if a key may pass from one service port to another."""
        return "service_id" not in self.fields[: self.key_fields] and not self.counted


# -- entries --


class ServiceName(NamedTuple):
    """What people call a service id. ``number`` is ``spec.ports[].port``."""

    service_id: int
    port: ServicePort
    number: int


class EndpointEntry(NamedTuple):
    """Address, port and protocol that are a backend of some service port."""

    address: bytes
    port: int
    protocol: int


class BackendEntry(NamedTuple):
    """The backend in one slot; ``counters_id`` is the index of its counters."""

    service_id: int
    generation: int
    slot: int
    address: bytes
    port: int
    counters_id: int
    hairpin: bool = False


class PositionEntry(NamedTuple):
    """The first and the last slot of a backend of a service port with session affinity."""

    service_id: int
    generation: int
    address: bytes
    port: int
    slots: tuple[int, int]


class SourceRangeEntry(NamedTuple):
    """A network whose clients may use the restricted frontends of a service port."""

    service_id: int
    network: Network


class ServiceId(NamedTuple):
    """What the agent needs of an entry that the programs made."""

    service_id: int


class EchoEntry(NamedTuple):
    """An address, as a network of its own, at which echo requests are answered."""

    address: Network


class FrontendEntry(NamedTuple):
    """What each class of clients meets at a frontend."""

    frontend: Frontend
    service_id: int
    generation: int
    policies: Policies


def _names(one: Applied) -> Iterable[ServiceName]:
    return (ServiceName(one.service_id, one.port, one.number),)


def _endpoints(one: Applied) -> Iterable[EndpointEntry]:
    protocol = one.port.protocol
    return [EndpointEntry(address, port, protocol) for address, port in one.counters()]


def _backends(one: Applied) -> Iterable[BackendEntry]:
    service_id, generation = one.service_id, one.generation
    return [
        BackendEntry(service_id, generation, slot, address, port, counters_id, bool(hairpin))
        for slot, (address, port, counters_id, hairpin) in enumerate(one.records())
    ]


def _positions(one: Applied) -> Iterable[PositionEntry]:
    service_id, generation = one.service_id, one.generation
    return [
        PositionEntry(service_id, generation, *place, slots)
        for place, slots in one.positions().items()
    ]


def _echo_addresses(one: Applied) -> list[EchoEntry]:
    addresses = {
        frontend.address: None for frontend, policies in one.frontend_items() if policies.echo
    }
    return [EchoEntry(Network(address, ALL_BITS)) for address in addresses]


def _frontends(one: Applied) -> Iterable[FrontendEntry]:
    service_id, generation = one.service_id, one.generation
    return [
        FrontendEntry(frontend, service_id, generation, policies)
        for frontend, policies in one.frontend_items()
    ]


# -- the registry --


def extra_map(name: str, entry: type[E], key_fields: int, option: str) -> ServiceMap[E]:
    """Describe a map whose entries are a service id and what ``PortEntries.extra`` has under
    the name of the map: for each entry a tuple of the other fields, sorted.

    If the second field is the generation, other entries are a new generation of the service port.
    """

    make: Callable[..., E] = entry
    has_generation = entry._fields[1:2] == ("generation",)  # type: ignore[attr-defined]

    def entries(one: Applied) -> Iterable[E]:
        found = one.extra.get(name)
        if not found:
            return ()
        ids = (one.service_id, one.generation) if has_generation else (one.service_id,)
        return (make(*ids, *rest) for rest in found)

    return ServiceMap(name, entry, key_fields, option, entries, Restore.EXTRA)


def kernel_map(name: str, option: str) -> ServiceMap[ServiceId]:
    """Describe a map whose entries the programs make, by service id; the agent deletes them."""

    def entries(one: Applied) -> Iterable[ServiceId]:
        return (ServiceId(one.service_id),)

    return ServiceMap(name, ServiceId, 1, option, entries, Restore.KEPT, by_kernel=True)


SERVICES = ServiceMap("services", ServiceName, 1, "--max-services", _names, Restore.PART)
ENDPOINTS = ServiceMap(
    "endpoints", EndpointEntry, 3, "--max-backends", _endpoints, Restore.LATER, counted=True
)
BACKENDS = ServiceMap("backends", BackendEntry, 3, "--max-backend-slots", _backends, Restore.PART)
POSITIONS = ServiceMap("positions", PositionEntry, 4, "--max-backends", _positions, Restore.DERIVED)
SOURCE_RANGES = extra_map("source_ranges", SourceRangeEntry, 2, "--max-source-ranges")
SCHEDULE_TABLES = extra_map("schedule_tables", ScheduleTableEntry, 4, "--max-schedule-chunks")
CANDIDATES = ServiceMap(
    "candidates",
    CandidatesEntry,
    4,
    "--max-schedule-chunks",
    candidates,
    Restore.EXTRA,
    extra_of=candidate_weights,
)
SPILLS = ServiceMap(
    "spills",
    SpillEntry,
    2,
    "--max-schedule-chunks",
    spills,
    Restore.EXTRA,
    extra_of=lambda entry: entry.spill,
)
SCHEDULE_ROUNDS = ServiceMap(
    "schedule_rounds", RoundEntry, 1, "--max-services", rounds, Restore.DERIVED, put_once=True
)
LOCALITIES = ServiceMap(
    "localities",
    LocalityEntry,
    4,
    "--max-schedule-chunks",
    localities,
    Restore.DERIVED,
    put_once=True,
)
ECHO_ADDRESSES = ServiceMap(
    "echo_addresses",
    EchoEntry,
    1,
    "--max-frontends",
    _echo_addresses,
    Restore.LATER,
    counted=True,
)
REFUSALS = kernel_map("refusals", "--max-services")
FRONTENDS = ServiceMap("frontends", FrontendEntry, 1, "--max-frontends", _frontends, Restore.PART)

MAPS: tuple[ServiceMap[Any], ...] = (
    SERVICES,
    REFUSALS,
    ENDPOINTS,
    BACKENDS,
    POSITIONS,
    SOURCE_RANGES,
    SCHEDULE_TABLES,
    CANDIDATES,
    SPILLS,
    SCHEDULE_ROUNDS,
    LOCALITIES,
    ECHO_ADDRESSES,
    FRONTENDS,
)
"""In the order in which entries may be put: frontends last, as they refer to all others. Entries
are deleted in the opposite order."""
