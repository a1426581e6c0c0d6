"""A kernel of dictionaries that checks every single write, and a planner for it.

It executes plans one operation at a time, in any order inside a phase, and after each one checks
all that a packet may look up: every frontend has a complete set of backends of its Service, their
positions if it has affinity, its source ranges if it is restricted, its tables and its counter of
turns if its schedule has them, and its address among those that answer pings if it wants that.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from functools import partial
from itertools import islice
from random import Random
from typing import Any

from bpfsvc.base.networks import ALL_BITS, Network
from bpfsvc.services.cache import Cache, ServiceKey
from bpfsvc.services.entries import Frontend, Place, Policy, ServicePort
from bpfsvc.services.planner import Planner, Synced
from bpfsvc.services.plans.plan import Plan
from bpfsvc.services.plans.registry import (
    BACKENDS,
    ECHO_ADDRESSES,
    ENDPOINTS,
    FRONTENDS,
    MAPS,
    POSITIONS,
    SERVICES,
    SOURCE_RANGES,
    BackendEntry,
    EchoEntry,
    EndpointEntry,
    FrontendEntry,
    PositionEntry,
    ServiceName,
    SourceRangeEntry,
)
from bpfsvc.services.scheduling.extra import candidate_rows
from bpfsvc.services.scheduling.maps import (
    CANDIDATES,
    LOCALITIES,
    SCHEDULE_ROUNDS,
    SCHEDULE_TABLES,
    SPILLS,
    CandidatesEntry,
    LocalityEntry,
    RoundEntry,
    ScheduleTableEntry,
    among,
)
from bpfsvc.services.scheduling.schedulers import NO_SLOT, Schedule
from bpfsvc.services.service_map import E, ServiceMap
from tests.services.objects import CONFIG

Key = tuple[Any, ...]


class Kernel:
    """The maps. ``ever`` collects all backends that a service port has ever had in a plan."""

    def __init__(self) -> None:
        self.maps: dict[ServiceMap[Any], dict[Any, Any]] = {one: {} for one in MAPS}
        self.names: dict[int, ServiceName] = self.maps[SERVICES]
        self.endpoints: Counter[EndpointEntry] = Counter()
        self.echoes: Counter[EchoEntry] = Counter()
        self._counts: dict[ServiceMap[Any], Counter[Any]] = {
            ENDPOINTS: self.endpoints,
            ECHO_ADDRESSES: self.echoes,
        }
        self.maps |= self._counts
        self.backends: dict[Key, BackendEntry] = self.maps[BACKENDS]
        self.positions: dict[Key, PositionEntry] = self.maps[POSITIONS]
        self.ranges: dict[Key, SourceRangeEntry] = self.maps[SOURCE_RANGES]
        self.frontends: dict[Frontend, FrontendEntry] = self.maps[FRONTENDS]
        self.candidates: dict[Key, CandidatesEntry] = self.maps[CANDIDATES]
        self.tables: dict[Key, ScheduleTableEntry] = self.maps[SCHEDULE_TABLES]
        self.rounds: dict[int, RoundEntry] = self.maps[SCHEDULE_ROUNDS]
        self.localities: dict[LocalityEntry, LocalityEntry] = self.maps[LOCALITIES]
        self.vanished: set[Frontend] = set()
        self.ever: dict[ServicePort, set[Place]] = defaultdict(set)

    def execute(self, plan: Plan, random: Random, stop_after: int | None = None) -> None:
        """Execute a plan, or only its first ``stop_after`` operations, and check after each."""
        for port, applied in plan.applied.items():
            if applied:
                self.ever[port] |= {one.place for one in applied.backends()}
        for operate in islice(self._operations(plan, random), stop_after):
            operate()
            self.check()

    def sync(
        self,
        planner: Planner,
        touched: Iterable[ServiceKey] | None,
        random: Random,
        now: float = 0,
    ) -> Synced:
        """Write some Services, or all; assert that no frontend is deleted and written again."""
        self.vanished.clear()
        write = partial(self.execute, random=random)
        if touched is None:
            synced = planner.sync_all(now, write)
        else:
            synced = planner.sync(touched, now, write)
        assert not self.vanished & set(self.frontends), "a frontend was missing for a moment"
        assert set(+self.echoes) == set(map(_echo_of, self._answering())), "pings are not in step"
        return synced

    def check(self) -> None:
        """Check all entries that a packet may look up."""
        newest: dict[int, int] = defaultdict(int)
        for entry in self.frontends.values():
            newest[entry.service_id] = max(newest[entry.service_id], entry.generation)
        for entry in self.frontends.values():
            assert entry.service_id in self.names, "a frontend of a Service without a name"
            port = self.names[entry.service_id].port
            # One of an older generation is a stray, and about to be deleted.
            if entry.policies.restricted and entry.generation == newest[entry.service_id]:
                assert self.ranges_of(entry.service_id), (
                    "no client is allowed at a restricted frontend"
                )
            if entry.policies.echo and entry.generation == newest[entry.service_id]:
                assert self.echoes[_echo_of(entry)] > 0, "its address does not answer pings"
            for policy in (entry.policies.pod, entry.policies.other):
                self._check_locality(entry, policy)
            for policy in entry.policies.by_class:
                self._check_table(entry, policy)
                if policy.spills:
                    self._check_spill(entry, policy)
                for slot in range(policy.first, policy.first + policy.size):
                    backend = self.backends.get((entry.service_id, entry.generation, slot))
                    assert backend, "a frontend has an empty slot"
                    address_port = (backend.address, backend.port)
                    assert address_port in self.ever[port]
                    assert self.endpoints[EndpointEntry(*address_port, port.protocol)]
                    if entry.policies.affinity_seconds:
                        key = (entry.service_id, entry.generation, *address_port)
                        known = self.positions[key].slots
                        # If it spills, the client is found among all that serve.
                        assert slot in known or (policy.spills and min(known) < policy.first)

    def _answering(self) -> Iterator[FrontendEntry]:
        return (entry for entry in self.frontends.values() if entry.policies.echo)

    def _check_table(self, entry: FrontendEntry, policy: Policy) -> None:
        """Check the table of a policy: all places that a packet may look up lead to its slots."""
        places = self.table(entry, policy)
        assert len(places) == policy.table, "a table has missing places"
        for slot in places:
            assert slot < policy.size or (slot == NO_SLOT and policy.reject)
        if Schedule(entry.policies.schedule).counts:
            self._check_candidates(entry, policy)
        if entry.policies.schedule == Schedule.ROUND:
            assert entry.service_id in self.rounds, "nobody counts the turns"

    def _check_candidates(self, entry: FrontendEntry, policy: Policy) -> None:
        """Check that each backend of a policy is compared, under the counters that it has."""
        of = entry.service_id, entry.generation
        rows = [
            counters
            for chunk in range(-(-policy.size // 64))
            for counters, _ in candidate_rows(self.candidates[*of, policy.first, chunk].rows)
        ]
        slots = range(policy.first, policy.first + policy.size)
        assert rows == [self.backends[*of, slot].counters_id for slot in slots]

    def _check_spill(self, entry: FrontendEntry, policy: Policy) -> None:
        """Check that connections find to what they spill over, right before the policy's slots."""
        spill = self.maps[SPILLS][entry.service_id, entry.generation]
        assert (spill.near_first, spill.near_size) == policy[:2]
        assert spill.first + spill.size == policy.first
        every = Policy(spill.first, spill.size, False, policy.reject, spill.table, spills=True)
        self._check_table(entry, every)
        for slot in range(spill.first, policy.first):
            assert (entry.service_id, entry.generation, slot) in self.backends

    def _check_locality(self, entry: FrontendEntry, policy: Policy) -> None:
        """Check that the address can keep to backends, if its scheduler does that."""
        schedule = entry.policies.schedule
        if Schedule(schedule).is_local and 0 < policy.size <= 64:
            key = (entry.service_id, entry.frontend.address, among(policy), schedule)
            assert key in self.localities

    def table(self, entry: FrontendEntry, policy: Policy) -> list[int]:
        """Return the places of the table of a policy."""
        chunks = (
            self.tables.get((entry.service_id, entry.generation, policy.first, chunk))
            for chunk in range(-(-policy.table // 128))
        )
        places = [slot for one in chunks if one for slot in memoryview(one.slots).cast("H")]
        return places[: policy.table]

    def ranges_of(self, service_id: int) -> list[Network]:
        """Return the source ranges of a service port, sorted."""
        return sorted(
            entry.network for entry in self.ranges.values() if entry.service_id == service_id
        )

    def meaning(self) -> dict[Frontend, tuple[object, ...]]:
        """Return what every frontend does, without ids: port, backends, policies, ranges."""
        meaning: dict[Frontend, tuple[object, ...]] = {}
        for frontend, entry in self.frontends.items():
            name = self.names[entry.service_id]
            slots = sorted(
                (one.slot, one.address, one.port, one.hairpin)
                for one in self.backends.values()
                if (one.service_id, one.generation) == (entry.service_id, entry.generation)
            )
            ranges = self.ranges_of(entry.service_id)
            tables = [self.table(entry, one) for one in entry.policies.by_class]
            meaning[frontend] = (name.port, name.number, slots, entry.policies, ranges, tables)
        return meaning

    def leftovers(self) -> set[Key]:
        """Return the keys of backend entries that belong to no frontend's generation."""
        current = {(entry.service_id, entry.generation) for entry in self.frontends.values()}
        return {key for key in self.backends if key[:2] not in current}

    def recount(self, planner: Planner) -> None:
        """Count what is applied, and keep what strays may still lead to."""
        held = Counter(entry for one in planner.applied_state for entry in ENDPOINTS.entries(one))
        held += Counter({entry: 1 for entry in self.endpoints if self.endpoints[entry]})
        self.endpoints.clear()
        self.endpoints.update(held)
        self.echoes.clear()
        for one in planner.applied_state:
            self.echoes.update(ECHO_ADDRESSES.entries(one))

    def _operations(self, plan: Plan, random: Random) -> Iterator[Callable[[], object]]:
        for phases, operate in (
            (plan.put_phases(), self._put),
            (plan.delete_phases(), self._delete),
        ):
            for one, items in phases:
                shuffled = list(items)
                random.shuffle(shuffled)
                for item in shuffled:
                    yield partial(operate, one, item)

    def _put(self, one: ServiceMap[Any], entry: Any) -> None:
        key = one.key(entry)
        if one.counted:
            self._counts[one][entry] += 1
            return
        assert not (one.has_generation and key in self.maps[one]), "overwritten in place"
        if one.put_once and key in self.maps[one]:
            return
        self.maps[one][key] = entry

    def _delete(self, one: ServiceMap[Any], key: Any) -> None:
        if one.counted:
            entry = EndpointEntry(*key) if one is ENDPOINTS else EchoEntry(key)
            assert self._counts[one][entry] > 0
            self._counts[one][entry] -= 1
            return
        if not one.by_kernel:
            del self.maps[one][key]
        if one is FRONTENDS:
            self.vanished.add(key)

    def read(self, one: ServiceMap[E], /) -> list[E]:
        """Return the entries of a map, as they are now."""
        return list(self.maps[one].values())


def _echo_of(entry: FrontendEntry) -> EchoEntry:
    return EchoEntry(Network(entry.frontend.address, ALL_BITS))


def new_planner(
    node_name: str = "here", *, max_backends: int = 1000, at_once: int = 500
) -> Planner:
    """Return the planner of an agent that has just started."""
    config = replace(CONFIG, vip_echo=True)
    return Planner(Cache(node_name), config, max_backends=max_backends, at_once=at_once)


def restore_from(kernel: Kernel, planner: Planner) -> None:
    """Restore what the kernel holds."""
    planner.restore(kernel.read)
    kernel.recount(planner)
