"""Which backends the frontends of a service port lead to, by their entries."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass
from typing import NamedTuple

from bpfsvc.inspect.entries import EntryReader
from bpfsvc.inspect.policies import PolicyTexts
from bpfsvc.inspect.services.weights import SlotRange, weights_of
from bpfsvc.services.entries import CLIENTS, Place
from bpfsvc.services.plans.registry import BACKENDS, BackendEntry, FrontendEntry
from bpfsvc.services.scheduling.maps import SPILLS, SpillEntry


class WrittenBackend(NamedTuple):
    """A backend as slots have it; ``counters`` is the index of its counters."""

    address: bytes
    port: int
    local: bool
    counters: int

    @property
    def endpoint(self) -> Place:
        """Its address and port."""
        return self.address, self.port


class Slots:
    """The backends by service id, generation and slot."""

    def __init__(self, entries: EntryReader) -> None:
        self._entries = entries
        self._backends: dict[int, dict[int, dict[int, WrittenBackend]]] = {}
        for entry in entries.read(BACKENDS):
            generations = self._backends.setdefault(entry.service_id, {})
            generations.setdefault(entry.generation, {})[entry.slot] = _written(entry)

    def backends_in(self, service: int, slots: SlotRange) -> Iterator[WrittenBackend]:
        """Yield the backends in a range of slots.

        A generation that was written after the others were read is looked up.
        """
        generation, first, size = slots
        known = self._generation(service, generation)
        for slot in range(first, first + size):
            backend = known.get(slot)
            if backend is None:
                entry = self._entries.look_up(BACKENDS, service, generation, slot)
                backend = _written(entry) if entry else None
            if backend:
                yield backend

    def behind(self, service: int, generation: int, first: int) -> set[WrittenBackend]:
        """Return the backends of a generation in slot ``first`` and the slots after it."""
        slots = self._generation(service, generation)
        return {backend for slot, backend in slots.items() if slot >= first}

    def newest(self, service: int, after: int) -> Collection[WrittenBackend]:
        """Return the backends of the newest generation, if it is not older than ``after``."""
        generations = self._backends.get(service, {})
        newest = max(generations, default=-1)
        return generations[newest].values() if generations and newest >= after else ()

    def _generation(self, service: int, generation: int) -> Mapping[int, WrittenBackend]:
        return self._backends.get(service, {}).get(generation, {})


def _written(entry: BackendEntry) -> WrittenBackend:
    return WrittenBackend(entry.address, entry.port, entry.hairpin, entry.counters_id)


@dataclass(frozen=True, slots=True)
class Reached:
    """Which backends the frontends of a service port lead to.

    * ``ranges``: the backends in each range of slots.
    * ``clients``: the classes of clients that each backend is chosen for.
    * ``weights``: of backends that have another weight than 1.
    * ``quiesced``: backends behind all ranges, where backends of weight 0 stand.
    * ``others``: further backends that are written, which no frontend leads to.
    * ``overload``: when connections overflow, in thousandths; 0: never.
    """

    ranges: Mapping[SlotRange, Sequence[WrittenBackend]]
    clients: Mapping[WrittenBackend, Set[str]]
    weights: Mapping[WrittenBackend, int]
    quiesced: Set[WrittenBackend]
    others: Set[WrittenBackend]
    overload: int

    @property
    def backends(self) -> list[WrittenBackend]:
        """All backends, sorted."""
        return sorted({*self.clients, *self.quiesced, *self.others})

    @property
    def local_ranges(self) -> set[SlotRange]:
        """The ranges in which all backends are on this node, if there are other backends."""
        if all(backend.local for backend in self.clients):
            return set()
        return {
            slots
            for slots, backends in self.ranges.items()
            if backends and all(backend.local for backend in backends)
        }


class Reaching(NamedTuple):
    """Entries that are read once for all service ports."""

    entries: EntryReader
    slots: Slots
    spills: Mapping[tuple[int, int], SpillEntry]
    texts: PolicyTexts

    @classmethod
    def read(cls, entries: EntryReader, texts: PolicyTexts) -> Reaching:
        """Read the slots, and the ranges that connections overflow to."""
        spills = {(spill.service_id, spill.generation): spill for spill in entries.read(SPILLS)}
        return cls(entries, Slots(entries), spills, texts)

    def reach(self, service: int, frontends: Sequence[FrontendEntry]) -> Reached:
        """Return where the frontends of a service port lead."""
        ranges = self._ranges(service, frontends)
        clients: dict[WrittenBackend, set[str]] = {}
        overload = 0
        for entry in frontends:
            for clients_class, slots in zip(CLIENTS, ranges_of(entry), strict=True):
                for backend in ranges[slots]:
                    clients.setdefault(backend, set()).add(clients_class)
            spill = self.spills.get((service, entry.generation))
            overflowing = _overflowing(entry)
            if spill and overflowing:
                overload = spill.overload
                slots = entry.generation, spill.first, spill.size
                for backend in self.slots.backends_in(service, slots):
                    clients.setdefault(backend, set()).update(overflowing)
        newest = max((entry.generation for entry in frontends), default=0)
        reached = clients.keys()
        return Reached(
            ranges,
            clients,
            self._weights(service, frontends, ranges),
            self._behind(service, newest, frontends) - reached,
            set(self.slots.newest(service, newest)) - reached,
            overload,
        )

    def _ranges(
        self, service: int, frontends: Iterable[FrontendEntry]
    ) -> dict[SlotRange, tuple[WrittenBackend, ...]]:
        """Return the backends in each range of slots that a policy chooses from."""
        ranges = dict.fromkeys(slots for entry in frontends for slots in ranges_of(entry))
        return {slots: tuple(self.slots.backends_in(service, slots)) for slots in ranges}

    def _weights(
        self,
        service: int,
        frontends: Iterable[FrontendEntry],
        ranges: Mapping[SlotRange, Sequence[WrittenBackend]],
    ) -> dict[WrittenBackend, int]:
        """Return the weights of backends in ranges that have some."""
        weights: dict[WrittenBackend, tuple[int, int]] = {}
        done: set[SlotRange] = set()
        for entry in frontends:
            compares = self.texts.compares(entry.policies)
            schedule = self.texts.schedule(entry.policies)
            for policy, slots in zip(entry.policies.by_class, ranges_of(entry), strict=True):
                backends, table = ranges[slots], 0 if compares else policy.table
                is_new = slots not in done
                done.add(slots)
                if is_new and (table or compares) and len(backends) == policy.size:
                    new_weights = weights_of(self.entries, service, slots, schedule, table)
                    for backend, weight in zip(backends, new_weights, strict=True):
                        # The larger range has the weights of more endpoints to compare with.
                        known = weights.get(backend, (0, 0))
                        weights[backend] = max(known, (policy.size, weight))
        return {backend: weight for backend, (_, weight) in weights.items()}

    def _behind(
        self, service: int, newest: int, frontends: Iterable[FrontendEntry]
    ) -> set[WrittenBackend]:
        """Return the backends behind all ranges of the newest generation."""
        ends = [
            first + size
            for entry in frontends
            for generation, first, size in ranges_of(entry)
            if generation == newest
        ]
        return self.slots.behind(service, newest, max(ends)) if ends else set()


def ranges_of(entry: FrontendEntry) -> list[SlotRange]:
    """Return the range of slots for each class of clients."""
    return [(entry.generation, *policy[:2]) for policy in entry.policies.by_class]


def _overflowing(entry: FrontendEntry) -> set[str]:
    """Return the classes of clients that may overflow from near endpoints to all."""
    if not entry.policies.counted:
        return set()
    classes = zip(CLIENTS, entry.policies.by_class, strict=True)
    return {name for name, policy in classes if policy.spills}
