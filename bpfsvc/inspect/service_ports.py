"""Service ports with their frontends, backends and connections, put together from several maps.

A backend is

* ``ready`` if new connections of some clients may be sent to it: the frontends lead there, or
  connections spill over to it;
* ``quiesced`` if its weight is 0: its connections go on, and no new ones are sent to it;
* ``quarantined`` if it is treated so for a while, because connections to it failed;
* ``trial`` if that is over: one connection at a time tries it, or all where others are too few;
* ``draining`` if it has connections of the service port and no new ones are sent to it;
* ``unused`` if it is written and no frontend leads to it, as where another Service has the
  frontends.

The maps say no more: not whether an endpoint is terminating, nor the name of its pod.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple

from bpfsvc.base.address import endpoint_text
from bpfsvc.base.errors import KernelError
from bpfsvc.datapath.maps.layout import Layout
from bpfsvc.inspect import connection_counts
from bpfsvc.inspect.connection_counts import Counts, Place
from bpfsvc.inspect.fields import lacks
from bpfsvc.inspect.quarantine import quarantined
from bpfsvc.inspect.reader import Reader
from bpfsvc.inspect.removal import KEEP
from bpfsvc.inspect.service_entries import (
    FrontendEntry,
    PortName,
    Slot,
    SlotRange,
    Slots,
    frontend_entries,
    port_names,
    ranges_by_service,
)
from bpfsvc.inspect.services import (
    ADDRESS_KEY,
    BACKEND,
    FRONTEND,
    NAME,
    SLOT,
    TRAFFIC,
    action_text,
)
from bpfsvc.inspect.socket_counts import ACTIVE, INACTIVE, SocketCounts
from bpfsvc.inspect.spills import Spills, spill_ranges
from bpfsvc.services.entries import CLIENTS, Frontend, frontend_text
from bpfsvc.services.scheduling.spill import overload_text

READY, QUIESCED, DRAINING, UNUSED = "ready", "quiesced", "draining", "unused"
QUARANTINED, TRIAL = "quarantined", "trial"

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

    ``clients``: the classes that it is chosen for, at any frontend. ``weight`` is meant as in
    ip_vs: 0 takes no new connections.
    """

    place: Place
    state: str
    weight: int
    local: bool | None
    clients: tuple[str, ...]
    active: int
    inactive: int
    counters: int

    @property
    def text(self) -> str:
        """Its address and port."""
        return endpoint_text(*self.place)


@dataclass(frozen=True, slots=True)
class ServicePortFacts:
    """One service port; ``namespace`` is empty if the kernel has no name for it any more.

    ``partial``: which numbers of connections, ``active`` or ``inactive``, leave out some that
    sockets carry. ``zone_overload``: when connections spill over; empty if none do.
    """

    service: int
    namespace: str
    name: str
    port_name: str
    number: int
    protocol: str
    family: str
    scheduler: str
    removal: str
    zone_overload: str
    affinity_seconds: int
    source_ranges: tuple[str, ...]
    frontends: tuple[FrontendFacts, ...]
    backends: tuple[BackendFacts, ...]
    partial: tuple[str, ...]

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

    def known(self, active: int, inactive: int) -> tuple[int | None, int | None]:
        """Return numbers of connections as they are known: None for a 0 that may not be true."""
        return (
            None if not active and ACTIVE in self.partial else active,
            None if not inactive and INACTIVE in self.partial else inactive,
        )


def collect(reader: Reader, sockets: SocketCounts | None = None) -> list[ServicePortFacts]:
    """Return all service ports, sorted by name. ``sockets``: those of this reader, if known.

    Raises :class:`KernelError` if the maps are of a build that lacks what is needed.
    """
    _require(reader.layout)
    sockets = sockets or SocketCounts(reader)
    # In this order, a backend that is removed meanwhile is one that drains, and a connection to one
    # that is new is not seen without it.
    counts = connection_counts.connection_counts(reader)
    slots = Slots(reader)
    frontends = frontend_entries(reader)
    ranges = ranges_by_service(reader)
    names = port_names(reader)
    spills = spill_ranges(reader)
    on_trial = quarantined(reader)
    found = [
        _service_port(
            names.get(service) or PortName(service),
            _Reached(service, frontends.get(service, []), slots, spills),
            counts.get(service, {}),
            tuple(ranges.get(service, ())),
            sockets,
            on_trial,
        )
        for service in sorted(names.keys() | counts.keys() | sockets.services)
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


# -- what it is put together to --


def _service_port(
    name: PortName,
    reached: _Reached,
    counts: Mapping[Place, Counts],
    ranges: tuple[str, ...],
    sockets: SocketCounts,
    on_trial: Mapping[int, bool],
) -> ServicePortFacts:
    frontends = reached.frontends
    schedules = [one.schedule for one in frontends]
    # Of two frontends, one may have endpoints of one weight only, and so no table.
    schedule = max(schedules, key=lambda one: any(one.tables), default=None)
    here = reached.local_ranges()
    all_counts = sockets.with_sockets(name.service, counts, reached.counting())
    return ServicePortFacts(
        **name._asdict(),
        scheduler=schedule.scheduler if schedule else "",
        removal=frontends[0].removal if frontends else KEEP,
        zone_overload=overload_text(reached.overload) if reached.overload else "",
        affinity_seconds=max((one.affinity for one in frontends), default=0),
        source_ranges=ranges,
        frontends=tuple(
            _frontend_facts(one, here) for one in sorted(frontends, key=lambda each: each.key)
        ),
        backends=tuple(_backends(reached, all_counts, on_trial)),
        partial=sockets.partial(name.protocol, frontends),
    )


class _Reached:
    """Which backends the frontends of a service port lead to.

    * ``chosen``: those of each range of slots.
    * ``clients``: the classes that each backend is chosen for; none for others that are written.
    * ``quiesced``: backends behind all ranges, where those of weight 0 stand.
    * ``overload``: when connections spill over, in thousandths; 0: never.
    """

    def __init__(
        self, service: int, frontends: list[FrontendEntry], slots: Slots, spills: Spills
    ) -> None:
        self.frontends, self.overload = frontends, 0
        self.chosen: dict[SlotRange, tuple[Slot, ...]] = {}
        self.clients: dict[Slot, set[str]] = {}
        self._weights: dict[Slot, tuple[int, int]] = {}
        self._service, self._slots, self._spills = service, slots, spills
        self._compares = any(one.counts for one in frontends)
        for one in frontends:
            self._follow(one)
        newest = max((one.generation for one in frontends), default=0)
        current = [each for one in frontends if one.generation == newest for each in one.policies]
        reach = max((first + size for first, size, *_ in current), default=None)
        behind = slots.behind(service, newest, reach) if reach is not None else ()
        self.quiesced = {slot for slot in behind if slot not in self.clients}
        self._latest = [one for one in slots.latest(service, newest) if one not in self.clients]

    def _follow(self, one: FrontendEntry) -> None:
        tables = one.schedule.tables
        for who, policy, table in zip(CLIENTS, one.policies, tables, strict=True):
            first, size, *_ = policy
            where = (one.generation, first, size)
            if where not in self.chosen:
                among = tuple(self._slots.chosen(self._service, one.generation, policy))
                self.chosen[where] = among
                if (table or one.schedule.compares) and len(among) == size:
                    found = self._slots.weights(self._service, where, one.schedule.kind, table)
                    for slot, weight in zip(among, found, strict=True):
                        # The larger set has the weights of more endpoints to compare with.
                        self._weights[slot] = max(self._weights.get(slot, (0, 0)), (size, weight))
            for slot in self.chosen[where]:
                self.clients.setdefault(slot, set()).add(who)
        self._follow_spilled(one)

    def _follow_spilled(self, one: FrontendEntry) -> None:
        """Add what connections spill over to."""
        found = self._spills.get((self._service, one.generation))
        if found is None or not any(one.spilling.clients):
            return
        first, size, self.overload = found
        who = {name for name, spills in zip(CLIENTS, one.spilling.clients, strict=True) if spills}
        for slot in self._slots.chosen(self._service, one.generation, (first, size)):
            self.clients.setdefault(slot, set()).update(who)

    def local_ranges(self) -> set[SlotRange]:
        """Return the ranges whose backends are all on this node, if there are others."""
        if all(local for _, _, local, _ in self.clients):
            return set()
        return {
            where
            for where, among in self.chosen.items()
            if among and all(local for _, _, local, _ in among)
        }

    def weight(self, slot: Slot) -> int:
        """Return the weight of a backend that is chosen."""
        return self._weights[slot][1] if slot in self._weights else 1

    def counting(self) -> dict[Place, int]:
        """Return the ids of the counters of backends whose loads are counted."""
        if not self._compares:
            return {}
        return {(address, port): counters for (address, port, _, counters), _ in self.all()}

    def all(self) -> list[tuple[Slot, set[str]]]:
        """Return all backends with their classes of clients, sorted."""
        others = ((slot, set[str]()) for slot in {*self._latest, *self.quiesced})
        return sorted([*self.clients.items(), *others], key=lambda each: each[0])


def _frontend_facts(one: FrontendEntry, here: Collection[SlotRange]) -> FrontendFacts:
    """``here``: the ranges of slots whose backends are all on this node, unlike others."""
    address, port, protocol = one.key
    local = tuple((one.generation, *policy[:2]) in here for policy in one.policies)
    met = _meetings(tuple(policy[1:] for policy in one.policies), local)
    shown = frontend_text(Frontend(address, port, protocol))
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
    reached: _Reached, counts: Mapping[Place, Counts], on_trial: Mapping[int, bool]
) -> Iterator[BackendFacts]:
    """Yield the backends, those that only have connections left last.

    ``on_trial``: by counters, those that are or were in quarantine; True for those on trial.
    """
    known = set()
    for slot, who in reached.all():
        address, port, local, counters = slot
        place = address, port
        if place in known:
            continue  # with other counters: its frontends are on their way to a newer generation
        known.add(place)
        active, inactive = counts.get(place, (0, 0))
        if who:
            state, weight = TRIAL if on_trial.get(counters) else READY, reached.weight(slot)
        elif on_trial.get(counters):
            state, weight = TRIAL, 0
        elif slot in reached.quiesced:
            state, weight = QUARANTINED if counters in on_trial else QUIESCED, 0
        else:
            state, weight = DRAINING if active + inactive else UNUSED, 0
        classes = tuple(each for each in CLIENTS if each in who)
        yield BackendFacts(place, state, weight, bool(local), classes, active, inactive, counters)
    for place, (active, inactive) in sorted(counts.items()):
        if place not in known:
            yield BackendFacts(place, DRAINING, 0, None, (), active, inactive, 0)
