"""Service ports with their frontends, backends and connections, put together from several maps.

A backend is

* ``ready`` if new connections of some clients may be sent to it: the frontends lead there;
* ``draining`` if it has connections of the service port and no new ones are sent to it;
* ``unused`` if it is written and no frontend leads to it, as where another Service has the
  frontends.

The maps say no more: not whether an endpoint is terminating, nor the name of its pod.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple

from bpfsvc.base.errors import KernelError
from bpfsvc.base.networks import Network, network_text
from bpfsvc.datapath.maps.layout import Layout
from bpfsvc.inspect import clients, connection_counts
from bpfsvc.inspect.connection_counts import Counts, Place
from bpfsvc.inspect.fields import chooser, lacks, place_text, protocol_text, text
from bpfsvc.inspect.reader import Reader
from bpfsvc.inspect.schedulers import scheduler_reader
from bpfsvc.inspect.services import (
    ADDRESS_KEY,
    BACKEND,
    CLIENTS,
    FRONTEND,
    NAME,
    POLICY,
    SLOT,
    TRAFFIC,
    action_text,
    frontend_text,
)

READY, DRAINING, UNUSED = "ready", "draining", "unused"
WEIGHTS = {READY: 1, DRAINING: 0, UNUSED: 0}
"""State -> weight, in ip_vs's sense: 0 takes no new connections."""

_NEEDED: Mapping[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    "services": (("value",), NAME),
    "frontends": (ADDRESS_KEY, FRONTEND),
    "backends": (SLOT, BACKEND),
    "backend_counters": (("value",), TRAFFIC),
    "connections": (connection_counts.KEY, connection_counts.VALUE),
}


class Meeting(NamedTuple):
    """What one class of clients meets at a frontend.

    * ``action``: forward, masquerade, reject or drop.
    * ``backends``: among how many is chosen.
    * ``local``: all of them are on this node, and the service port has others.
    """

    action: str
    backends: int
    local: bool


class Meetings(NamedTuple):
    """What each class of clients meets, by the names of the classes."""

    pod: Meeting
    node: Meeting
    other: Meeting


@dataclass(frozen=True, slots=True)
class FrontendFacts:
    """Where clients send to, and what they meet there."""

    address: bytes
    port: int
    text: str
    restricted: bool
    clients: Meetings


@dataclass(frozen=True, slots=True)
class BackendFacts:
    """One backend; ``counters`` is the index of its counters, 0 if it has none any more.

    ``clients``: the classes that it is chosen for, at any frontend.
    """

    place: Place
    state: str
    local: bool | None
    clients: tuple[str, ...]
    active: int
    inactive: int
    counters: int

    @property
    def text(self) -> str:
        """Its address and port."""
        return place_text(*self.place)


@dataclass(frozen=True, slots=True)
class ServicePortFacts:
    """One service port; ``namespace`` is empty if the kernel has no name for it any more."""

    service: int
    namespace: str
    name: str
    port_name: str
    number: int
    protocol: str
    family: str
    scheduler: str
    affinity_seconds: int
    source_ranges: tuple[str, ...]
    frontends: tuple[FrontendFacts, ...]
    backends: tuple[BackendFacts, ...]

    @property
    def text(self) -> str:
        """Its name as all views show it."""
        if not self.namespace:
            return f"#{self.service}"
        return f"{self.namespace}/{self.name}:{self.port_name or self.number}"

    @property
    def active(self) -> int:
        """Active connections to all backends."""
        return sum(one.active for one in self.backends)

    @property
    def inactive(self) -> int:
        """Inactive connections to all backends."""
        return sum(one.inactive for one in self.backends)


def collect(reader: Reader) -> list[ServicePortFacts]:
    """Return all service ports, sorted by name.

    Raises :class:`KernelError` if the maps are of a build that lacks what is needed.
    """
    _require(reader.layout)
    # In this order, a backend that is removed meanwhile is one that drains, and a connection to one
    # that is new is not seen without it.
    counts = connection_counts.connection_counts(reader)
    slots = _Slots(reader)
    frontends = _frontends(reader)
    ranges = _source_ranges(reader)
    names = _names(reader)
    found = [
        _service_port(
            names.get(service) or _Name(service),
            frontends.get(service, []),
            slots,
            counts.get(service, {}),
            tuple(ranges.get(service, ())),
        )
        for service in sorted(names.keys() | counts.keys())
    ]
    return sorted(found, key=lambda one: (not one.namespace, one.text, one.protocol, one.family))


def _require(layout: Layout) -> None:
    for name, (key, value) in _NEEDED.items():
        known = layout.maps.get(name)
        if known is None or lacks(known.key, key) or lacks(known.value, value):
            raise KernelError(
                f"map {name} of build {layout.digest} lacks what this command needs",
                "look at it with: bpfsvc maps dump, or restart the agent: bpfsvc run",
            )


# -- what is read --

_Slot = tuple[bytes, int, int, int]
"""Address, port, whether it is on this node, index of its counters."""

_Range = tuple[int, ...]
"""Generation, first slot, size."""


@dataclass(frozen=True, slots=True)
class _Frontend:
    key: tuple[bytes, int, int]
    generation: int
    policies: tuple[tuple[int, ...], ...]
    affinity: int
    restricted: bool
    scheduler: str


class _Slots:
    """The backends by service id, generation and slot."""

    def __init__(self, reader: Reader) -> None:
        self._reader = reader
        layout = reader.layout.maps["backends"]
        self._key, self._value = layout.key, chooser(layout.value, BACKEND)
        key = chooser(layout.key, SLOT)
        self._found: dict[int, dict[int, dict[int, _Slot]]] = {}
        for raw_key, raw in reader.entries("backends"):
            service, generation, slot = key(raw_key)
            of = self._found.setdefault(service, {}).setdefault(generation, {})
            of[slot] = self._slot(raw)

    def _slot(self, raw: bytes) -> _Slot:
        address, port, hairpin, counters = self._value(raw)
        return address, port, hairpin, counters

    def chosen(self, service: int, generation: int, policy: tuple[int, ...]) -> Iterator[_Slot]:
        """Yield the backends that a policy chooses from.

        A generation that was written after the others were read is looked up.
        """
        first, size, *_ = policy
        known = self._found.get(service, {}).get(generation, {})
        for number in range(first, first + size):
            if slot := known.get(number) or self._look_up(service, generation, number):
                yield slot

    def _look_up(self, service: int, generation: int, number: int) -> _Slot | None:
        key = {"service": service, "generation": generation, "slot": number}
        raw = self._reader.value("backends", self._key.pack(key))
        return self._slot(raw) if raw else None

    def latest(self, service: int, after: int) -> Iterable[_Slot]:
        """Return the backends of the newest generation, if that is not older than another."""
        generations = self._found.get(service, {})
        newest = max(generations, default=-1)
        return generations[newest].values() if newest >= after and generations else ()


class _Name(NamedTuple):
    service: int
    namespace: str = ""
    name: str = ""
    port_name: str = ""
    number: int = 0
    protocol: str = ""
    family: str = ""


def _names(reader: Reader) -> dict[int, _Name]:
    layout = reader.layout.maps["services"]
    key, value = chooser(layout.key, ("value",)), chooser(layout.value, NAME)
    found: dict[int, _Name] = {}
    for raw_key, raw in reader.entries("services"):
        namespace, name, port_name, number, protocol, family = value(raw)
        service = key(raw_key)[0]
        found[service] = _Name(
            service,
            *(text(namespace), text(name), text(port_name), number),
            *(protocol_text(protocol), f"IPv{family}"),
        )
    return found


def _frontends(reader: Reader) -> dict[int, list[_Frontend]]:
    """Return service id -> frontends, without what guards the other ports of an address."""
    layout = reader.layout.maps["frontends"]
    key, value = chooser(layout.key, ADDRESS_KEY), chooser(layout.value, FRONTEND)
    scheduler = scheduler_reader(reader.layout)
    found: dict[int, list[_Frontend]] = {}
    for raw_key, raw in reader.entries("frontends"):
        address, port, protocol = key(raw_key)
        if not port and not protocol:
            continue
        service, generation, *flat, affinity, restricted = value(raw)
        policies = tuple(
            tuple(flat[at : at + len(POLICY)]) for at in range(0, len(flat), len(POLICY))
        )
        found.setdefault(service, []).append(
            _Frontend(
                (address, port, protocol),
                generation,
                policies,
                affinity,
                bool(restricted),
                scheduler(raw),
            )
        )
    return found


def _source_ranges(reader: Reader) -> dict[int, list[str]]:
    layout = reader.layout.maps.get("source_ranges")
    if layout is None or lacks(layout.key, clients.RANGE):
        return {}
    key = chooser(layout.key, clients.RANGE)
    found: dict[int, list[str]] = {}
    for bits, service, network in sorted(key(raw) for raw, _ in reader.entries("source_ranges")):
        shown = network_text(Network(network, bits - clients.SERVICE_BITS))
        found.setdefault(service, []).append(shown)
    return found


# -- what it is put together to --


def _service_port(
    name: _Name,
    frontends: list[_Frontend],
    slots: _Slots,
    counts: Mapping[Place, Counts],
    ranges: tuple[str, ...],
) -> ServicePortFacts:
    service = name.service
    chosen: dict[_Range, tuple[_Slot, ...]] = {}
    reached: dict[_Slot, set[str]] = {}
    for one in frontends:
        for who, policy in zip(CLIENTS, one.policies, strict=True):
            where = (one.generation, *policy[:2])
            if where not in chosen:
                chosen[where] = tuple(slots.chosen(service, one.generation, policy))
            for slot in chosen[where]:
                reached.setdefault(slot, set()).add(who)
    everywhere = not all(local for _, _, local, _ in reached)
    here = {
        where
        for where, among in chosen.items()
        if everywhere and among and all(local for _, _, local, _ in among)
    }
    newest = max((one.generation for one in frontends), default=0)
    for slot in slots.latest(service, newest):
        reached.setdefault(slot, set())
    return ServicePortFacts(
        **name._asdict(),
        scheduler=frontends[0].scheduler if frontends else "",
        affinity_seconds=max((one.affinity for one in frontends), default=0),
        source_ranges=ranges,
        frontends=tuple(
            _frontend_facts(one, here) for one in sorted(frontends, key=lambda each: each.key)
        ),
        backends=tuple(_backends(reached, counts)),
    )


def _frontend_facts(one: _Frontend, here: Collection[_Range]) -> FrontendFacts:
    """``here``: the ranges of slots whose backends are all on this node, unlike others."""
    address, port, protocol = one.key
    local = tuple((one.generation, *policy[:2]) in here for policy in one.policies)
    met = _meetings(tuple(policy[1:] for policy in one.policies), local)
    shown = frontend_text(address, port, protocol)
    return FrontendFacts(address, port, shown, one.restricted, met)


@lru_cache(maxsize=1024)
def _meetings(policies: tuple[tuple[int, ...], ...], local: tuple[bool, ...]) -> Meetings:
    """Return what clients meet; ten thousand Services share a few of these."""
    return Meetings(
        *(
            Meeting(action_text(size, masquerade, reject), size, of_node)
            for (size, masquerade, reject), of_node in zip(policies, local, strict=True)
        )
    )


def _backends(
    reached: Mapping[_Slot, set[str]], counts: Mapping[Place, Counts]
) -> Iterator[BackendFacts]:
    """Yield the backends, those that only have connections left last."""
    known = set()
    for (address, port, local, counters), who in sorted(reached.items(), key=lambda each: each[0]):
        place = address, port
        if place in known:
            continue  # with other counters: its frontends are on their way to a newer generation
        known.add(place)
        active, inactive = counts.get(place, (0, 0))
        state = READY if who else DRAINING if active + inactive else UNUSED
        classes = tuple(each for each in CLIENTS if each in who)
        yield BackendFacts(place, state, bool(local), classes, active, inactive, counters)
    for place, (active, inactive) in sorted(counts.items()):
        if place not in known:
            yield BackendFacts(place, DRAINING, None, (), active, inactive, 0)
