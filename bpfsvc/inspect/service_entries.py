"""Entries of Services as they are read, by service id; :mod:`.service_ports` puts them together."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass
from typing import NamedTuple

from bpfsvc.base.networks import Network, network_text
from bpfsvc.inspect import clients
from bpfsvc.inspect.fields import chooser, lacks, protocol_text, text
from bpfsvc.inspect.reader import Reader
from bpfsvc.inspect.removal import removal_reader
from bpfsvc.inspect.schedulers import FrontendSchedule, schedule_reader, weights
from bpfsvc.inspect.services import ADDRESS_KEY, BACKEND, FRONTEND, NAME, POLICY, SLOT
from bpfsvc.inspect.spills import FrontendSpilling, spilling_reader

Slot = tuple[bytes, int, int, int]
"""Address, port, whether it is on this node, index of its counters."""

SlotRange = tuple[int, int, int]
"""Generation, first slot, size."""


@dataclass(frozen=True, slots=True)
class FrontendEntry:
    """A frontend; ``policies``: the fields ``POLICY`` of each class of clients."""

    key: tuple[bytes, int, int]
    generation: int
    policies: tuple[tuple[int, ...], ...]
    affinity: int
    restricted: bool
    schedule: FrontendSchedule
    removal: str
    spilling: FrontendSpilling

    @property
    def counts(self) -> bool:
        """True if connections of each backend are counted."""
        return self.schedule.compares or self.spilling.counted


class Slots:
    """The backends by service id, generation and slot, and what leads to them."""

    def __init__(self, reader: Reader) -> None:
        self._reader = reader
        layout = reader.layout.maps["backends"]
        self._key, self._value = layout.key, chooser(layout.value, BACKEND)
        key = chooser(layout.key, SLOT)
        self._found: dict[int, dict[int, dict[int, Slot]]] = {}
        for raw_key, raw in reader.entries("backends"):
            service, generation, slot = key(raw_key)
            of = self._found.setdefault(service, {}).setdefault(generation, {})
            of[slot] = self._slot(raw)

    def _slot(self, raw: bytes) -> Slot:
        address, port, hairpin, counters = self._value(raw)
        return address, port, hairpin, counters

    def chosen(self, service: int, generation: int, policy: tuple[int, ...]) -> Iterator[Slot]:
        """Yield the backends that a policy chooses from.

        A generation that was written after the others were read is looked up.
        """
        first, size, *_ = policy
        known = self._found.get(service, {}).get(generation, {})
        for number in range(first, first + size):
            if slot := known.get(number) or self._look_up(service, generation, number):
                yield slot

    def _look_up(self, service: int, generation: int, number: int) -> Slot | None:
        key = {"service": service, "generation": generation, "slot": number}
        raw = self._reader.value("backends", self._key.pack(key))
        return self._slot(raw) if raw else None

    def behind(self, service: int, generation: int, reach: int) -> Collection[Slot]:
        """Return the backends of a generation whose slots are ``reach`` and those after it."""
        known = self._found.get(service, {}).get(generation, {})
        return {slot for number, slot in known.items() if number >= reach}

    def weights(self, service: int, where: SlotRange, kind: str, table: int) -> tuple[int, ...]:
        """Return the weights of the slots of a policy, by a table of so many places."""
        generation, first, size = where
        return weights(self._reader, service, generation, (first, size), kind, table)

    def latest(self, service: int, after: int) -> Iterable[Slot]:
        """Return the backends of the newest generation, if that is not older than another."""
        generations = self._found.get(service, {})
        newest = max(generations, default=-1)
        return generations[newest].values() if newest >= after and generations else ()


class PortName(NamedTuple):
    """What people call a service id; empty for one that has no name any more."""

    service: int
    namespace: str = ""
    name: str = ""
    port_name: str = ""
    number: int = 0
    protocol: str = ""
    family: str = ""


def port_names(reader: Reader) -> dict[int, PortName]:
    """Return service id -> name."""
    layout = reader.layout.maps["services"]
    key, value = chooser(layout.key, ("value",)), chooser(layout.value, NAME)
    found: dict[int, PortName] = {}
    for raw_key, raw in reader.entries("services"):
        namespace, name, port_name, number, protocol, family = value(raw)
        service = key(raw_key)[0]
        found[service] = PortName(
            service,
            *(text(namespace), text(name), text(port_name), number),
            *(protocol_text(protocol), f"IPv{family}"),
        )
    return found


def frontend_entries(reader: Reader) -> dict[int, list[FrontendEntry]]:
    """Return service id -> frontends, without what guards the other ports of an address."""
    layout = reader.layout.maps["frontends"]
    key, value = chooser(layout.key, ADDRESS_KEY), chooser(layout.value, FRONTEND)
    schedule, removal = schedule_reader(reader.layout), removal_reader(reader.layout)
    spilling = spilling_reader(reader.layout)
    found: dict[int, list[FrontendEntry]] = {}
    for raw_key, raw in reader.entries("frontends"):
        address, port, protocol = key(raw_key)
        if not port and not protocol:
            continue
        service, generation, *flat, affinity, restricted = value(raw)
        policies = tuple(
            tuple(flat[at : at + len(POLICY)]) for at in range(0, len(flat), len(POLICY))
        )
        found.setdefault(service, []).append(
            FrontendEntry(
                (address, port, protocol),
                generation,
                policies,
                affinity,
                bool(restricted),
                schedule(raw),
                removal(raw),
                spilling(raw),
            )
        )
    return found


def ranges_by_service(reader: Reader) -> dict[int, list[str]]:
    """Return service id -> networks of its clients; none where all are allowed."""
    layout = reader.layout.maps.get("source_ranges")
    if layout is None or lacks(layout.key, clients.RANGE):
        return {}
    key = chooser(layout.key, clients.RANGE)
    found: dict[int, list[str]] = {}
    for bits, service, network in sorted(key(raw) for raw, _ in reader.entries("source_ranges")):
        shown = network_text(Network(network, bits - clients.SERVICE_BITS))
        found.setdefault(service, []).append(shown)
    return found
