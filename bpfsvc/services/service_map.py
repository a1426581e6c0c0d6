"""How a map that holds Services is described.

An entry is a named tuple: first the fields of its key, then the fields of its value, all named as
in the C struct, where ``x_id`` is ``x`` and nested names may lack their beginning. Plan, diff,
restore, drift and the writing of entries (:mod:`bpfsvc.datapath.maps.service_maps`) need no more.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from enum import Enum
from operator import itemgetter
from typing import TYPE_CHECKING, Any, Generic, NamedTuple, Protocol, TypeVar

if TYPE_CHECKING:
    from bpfsvc.services.plans.applied import Applied

E = TypeVar("E", bound=tuple[Any, ...])
"""The type of a map's entries."""


class Read(Protocol):
    """Reads the entries of a map, in any order."""

    def __call__(self, service_map: ServiceMap[E], /) -> Iterable[E]:
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
    * ``by_kernel``: the programs make the entries; the agent deletes them with their service port.
      The key is the service id.
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

    def extra(self, entry: E) -> tuple[Any, ...]:
        """Return what ``PortEntries.extra`` has of an entry."""
        if self.extra_of:
            return self.extra_of(entry)
        return tuple(entry[2 if self.has_generation else 1 :])

    @property
    def has_generation(self) -> bool:
        """True if each generation of a service port has entries of its own beside the others'."""
        return "generation" in self.fields[: self.key_fields]

    @property
    def changes_hands(self) -> bool:
        """True if a key may pass from one service port to another."""
        return "service_id" not in self.fields[: self.key_fields] and not self.counted


class ServiceId(NamedTuple):
    """What the agent needs of an entry that the programs made."""

    service_id: int


def extra_map(name: str, entry: type[E], key_fields: int, option: str) -> ServiceMap[E]:
    """Describe a map with entries of a service id and what ``PortEntries.extra`` has under
    the name of the map: for each entry a tuple of the other fields, sorted.

    If the second field is the generation, other entries are a new generation of the service port.
    """

    make: Callable[..., E] = entry
    has_generation = entry._fields[1:2] == ("generation",)  # type: ignore[attr-defined]

    def entries(state: Applied) -> Iterable[E]:
        extra = state.extra.get(name)
        if not extra:
            return ()
        ids = (state.service_id, state.generation) if has_generation else (state.service_id,)
        return (make(*ids, *rest) for rest in extra)

    return ServiceMap(name, entry, key_fields, option, entries, Restore.EXTRA)


def kernel_map(name: str, option: str) -> ServiceMap[ServiceId]:
    """Describe a map of entries that the programs make, by service id, and the agent deletes."""

    def entries(state: Applied) -> Iterable[ServiceId]:
        return (ServiceId(state.service_id),)

    return ServiceMap(name, ServiceId, 1, option, entries, Restore.KEPT, by_kernel=True)
