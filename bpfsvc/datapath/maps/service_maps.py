"""The maps that hold Services: plans are written to them, and entries read back.

Users of this module speak in the entries of :mod:`bpfsvc.services.plans.registry`; below it there
are only bytes (:mod:`bpfsvc.datapath.maps.codec`).
"""

from __future__ import annotations

import struct
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator
from functools import partial
from typing import Any, Generic

from bpfsvc.base.errors import KernelError, MapFull
from bpfsvc.base.networks import Network
from bpfsvc.datapath.bpf_map import Map
from bpfsvc.datapath.maps.codec import EntryCodec
from bpfsvc.datapath.maps.destinations import Destinations
from bpfsvc.datapath.maps.layout import Layout
from bpfsvc.datapath.maps.pins import Pinned
from bpfsvc.datapath.syscall import NOEXIST
from bpfsvc.services.plans.applied import Applied
from bpfsvc.services.plans.plan import Plan
from bpfsvc.services.plans.registry import FRONTENDS, MAPS
from bpfsvc.services.scheduling.constants import CONSTANTS
from bpfsvc.services.service_map import E, ServiceMap

_ID = struct.Struct("=I")

_FEW = 32
"""Up to so many entries are deleted one by one, without a look at which of them there are."""

_ANYTHING = _ID.pack(1)
"""The value of entries of a set."""


class ServiceMaps:
    """The maps that hold Services."""

    def __init__(self, pinned: Pinned) -> None:
        """Open the maps.

        Raises :class:`KernelError` if their layout, or a number that both sides use, is another one
        than here.
        """
        _check_constants(pinned.layout)
        self._tables: dict[ServiceMap[Any], _Table[Any]] = {
            service_map: _table(service_map, pinned) for service_map in MAPS
        }
        self._service_networks = pinned.map("service_networks")
        self._network = pinned.layout.maps["service_networks"].key.expect(
            "the keys of map service_networks", ("prefix", "network")
        )
        self._destinations = Destinations(pinned)
        self._opted_out = pinned.map("socket_optouts")
        self._counters = pinned.map("backend_counters")
        self._sparse_counts = (pinned.map("backend_failures"), pinned.map("connect_times"))
        """Maps that have an entry of a backend from its first count on."""

    def execute(self, plan: Plan) -> None:
        """Write a plan, phase by phase.

        Raises :class:`MapFull` at the first entry without room.
        """
        zeros = bytes(self._counters.value_size)
        self._counters.update_many((_ID.pack(id_), zeros) for id_ in plan.counters_taken)
        self._forget_counts(plan.counters_taken)
        for service_map, entries in plan.put_phases():
            try:
                self._tables[service_map].put(entries, self._destinations)
            except MapFull:
                if service_map is not FRONTENDS:
                    self._take_back(plan)
                raise
        for service_map, keys in plan.delete_phases():
            self._tables[service_map].delete(keys)
        self._forget_counts(plan.counters_freed)

    def _forget_counts(self, counters: Collection[int]) -> None:
        """Delete what was counted for former backends with these counters: few have any.

        Connections to a backend that is gone may count once more, so this is also done before
        another backend gets its counters.
        """
        keys = set(map(_ID.pack, counters))
        for counts in self._sparse_counts:
            there = {key for key, _ in counts.items()} if len(keys) > _FEW else keys
            for key in keys & there:
                counts.delete(key)

    def _take_back(self, plan: Plan) -> None:
        """Delete new generations of backends, which no frontend refers to and none will.

        A plan that repairs applied entries puts no new generation.
        """
        for service_map, entries in plan.put_phases() if plan.applied else ():
            if service_map.has_generation:
                self._tables[service_map].delete(map(service_map.key, entries))

    def read(self, service_map: ServiceMap[E], /) -> Iterator[E]:
        """Read all entries of a map."""
        table: _Table[E] = self._tables[service_map]
        return table.read()

    def recount(self, applied: Iterable[Applied]) -> int:
        """Correct the counts of the maps that have them; return the number of differences."""

        def uses(service_map: ServiceMap[Any]) -> Iterator[Any]:
            return (entry for port in applied for entry in service_map.entries(port))

        return sum(
            self.set_counts(service_map, partial(uses, service_map))
            for service_map in MAPS
            if service_map.counted
        )

    def set_counts(self, service_map: ServiceMap[E], uses: Callable[[], Iterable[E]]) -> int:
        """Make the entries of a counted map exactly these; return the number of differences.

        ``uses()`` yields an entry as often as it is used, in any order; it may be called twice.
        """
        table = self._tables[service_map]
        assert isinstance(table, _CountedTable)
        return table.set_counts(uses, self._destinations)

    def clear(self) -> None:
        """Delete all entries; the entries of frontends come first."""
        for service_map in reversed(MAPS):
            table = self._tables[service_map].map
            table.delete_many([key for key, _ in table.items()])

    # -- settings of the whole cluster and node --

    def set_service_networks(self, networks: Iterable[Network]) -> int:
        """Make the networks of cluster IPs exactly these; return the number of differences."""
        networks = set(networks)
        self._destinations.cover(networks)
        wanted = {self._network.pack(bits, address) for address, bits in networks}
        return _set_keys(self._service_networks, wanted)

    def know_destinations(self) -> None:
        """Set the bits of all addresses that are in the maps."""
        self._destinations.refill()

    def set_opted_out(self, addresses: Iterable[bytes]) -> int:
        """Make the pods that opted out exactly these; return the number of differences."""
        return _set_keys(self._opted_out, set(addresses))


class _Table(Generic[E]):
    """One map and how its entries are encoded."""

    def __init__(self, service_map: ServiceMap[E], pinned: Pinned) -> None:
        self.map = pinned.map(service_map.name)
        self._codec = EntryCodec(service_map, pinned.layout.maps[service_map.name])

    def put(self, entries: Iterable[E], destinations: Destinations) -> None:
        items = list(map(self._codec.encode, entries))
        destinations.add_keys(self.map.name, (key for key, _ in items))
        self.map.update_many(items)

    def delete(self, keys: Iterable[Any]) -> None:
        self.map.delete_many(list(map(self._codec.encode_key, keys)))

    def read(self) -> Iterator[E]:
        return self._codec.decode(self.map.items())


class _OnceTable(_Table[E]):
    """A map with values that the programs count in: an existing entry is never put again."""

    def put(self, entries: Iterable[E], destinations: Destinations) -> None:  # noqa: ARG002
        for key, value in map(self._codec.encode, entries):
            self.map.update(key, value, NOEXIST)


class _CountedTable(_Table[E]):
    """A map with numbers of uses as its values.

    The map itself holds the counts; memory for a second copy would be most of the agent's.
    """

    def __init__(self, service_map: ServiceMap[E], pinned: Pinned) -> None:
        super().__init__(service_map, pinned)
        # Before Linux 6.13 a trie replaces an existing entry in spite of NOEXIST.
        self._is_trie = pinned.layout.maps[service_map.name].type == "lpm_trie"

    def put(self, entries: Iterable[E], destinations: Destinations) -> None:
        uses = Counter(key for key, _ in map(self._codec.encode, entries))
        # At the start nearly all are new. They are written together; the others one by one.
        new = destinations.add_keys(self.map.name, uses)
        self.map.update_many((key, _ID.pack(uses.pop(key))) for key in new)
        for key, times in uses.items():
            if self._is_trie or not self.map.update(key, _ID.pack(times), NOEXIST):
                self.map.update(key, _ID.pack(self._uses(key) + times))

    def delete(self, keys: Iterable[Any]) -> None:
        gone = []
        for key, times in Counter(map(self._codec.encode_key, keys)).items():
            uses = self._uses(key) - times
            if uses > 0:
                self.map.update(key, _ID.pack(uses))
            else:
                gone.append(key)
        self.map.delete_many(gone)

    def set_counts(self, uses: Callable[[], Iterable[E]], destinations: Destinations) -> int:
        # Nearly always nothing differs. Equal sums of hashes say so without a copy of either side.
        held = sum(hash(key) * _ID.unpack(count)[0] for key, count in self.map.items())
        if held == sum(hash(key) for key, _ in map(self._codec.encode, uses())):
            return 0
        missing = Counter(key for key, _ in map(self._codec.encode, uses()))
        gone = []
        for key, count in self.map.items():
            if key not in missing:
                gone.append(key)
            elif missing[key] == _ID.unpack(count)[0]:
                del missing[key]
        destinations.add_keys(self.map.name, missing)
        self.map.update_many((key, _ID.pack(count)) for key, count in missing.items())
        self.map.delete_many(gone)
        return len(missing) + len(gone)

    def _uses(self, key: bytes) -> int:
        count: int = _ID.unpack(self.map.lookup(key) or bytes(4))[0]
        return count


def _check_constants(layout: Layout) -> None:
    """Raise :class:`KernelError` if a constant differs; an earlier build may lack some."""
    for name, number in CONSTANTS.items():
        if (of_programs := layout.constants.get(name, number)) != number:
            raise KernelError(
                f"the constant {name} of the kernel programs is {of_programs}; expected {number}",
                "the installed C sources and this version of bpfsvc do not belong together",
            )


def _table(service_map: ServiceMap[E], pinned: Pinned) -> _Table[E]:
    if service_map.counted:
        return _CountedTable(service_map, pinned)
    return (_OnceTable if service_map.put_once else _Table)(service_map, pinned)


def _set_keys(table: Map, wanted: set[bytes]) -> int:
    """Make the keys of a map that is a set exactly these; return the number of differences."""
    held = {key for key, _ in table.items()}
    table.update_many((key, _ANYTHING) for key in wanted - held)
    table.delete_many(list(held - wanted))
    return len(wanted ^ held)
