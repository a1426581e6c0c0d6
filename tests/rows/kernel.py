"""A kernel of dictionaries that watches every single write, and an agent to go with it.

It executes plans one operation at a time, in any order inside a phase, and after each one asks
what a packet would have asked: does every frontend lead to a full set of backends of its Service,
does it know where they stand if clients stay with theirs, and whom it is restricted to?
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from itertools import islice
from random import Random

from bpfsvc.books import Books
from bpfsvc.cluster import Cluster
from bpfsvc.plan import (
    PHASES,
    BackendRow,
    BackendSlot,
    EndpointRow,
    FrontendRow,
    Plan,
    Position,
    PositionRow,
    RangeRow,
    ServiceName,
)
from bpfsvc.rows import Frontend, Network, Place, Policies, ServicePort
from tests.rows.objects import CONFIG


class Kernel:
    """The maps. ``ever`` remembers all backends that a service port was ever meant to have."""

    def __init__(self) -> None:
        self.names: dict[int, ServiceName] = {}
        self.endpoints: Counter[EndpointRow] = Counter()
        self.backends: dict[BackendSlot, BackendRow] = {}
        self.positions: dict[Position, PositionRow] = {}
        self.ranges: set[RangeRow] = set()
        self.frontends: dict[Frontend, FrontendRow] = {}
        self.vanished: set[Frontend] = set()
        self.ever: dict[ServicePort, set[Place]] = defaultdict(set)

    def execute(self, plan: Plan, random: Random, stop_after: int | None = None) -> None:
        """Execute a plan, or only its first ``stop_after`` operations, and check after each."""
        for port, programmed in plan.programmed.items():
            if programmed:
                self.ever[port] |= {one.place for one in programmed.backends()}
        for operate in islice(self._operations(plan, random), stop_after):
            operate()
            self.check()

    def sync(self, plans: Iterable[Plan], random: Random) -> None:
        """Execute plans to their end; a frontend that was there and is there never was away."""
        self.vanished.clear()
        for plan in plans:
            self.execute(plan, random)
        assert not self.vanished & set(self.frontends), "a frontend was away for a moment"

    def check(self) -> None:
        """Ask what a packet asks."""
        newest: dict[int, int] = defaultdict(int)
        for row in self.frontends.values():
            newest[row.service_id] = max(newest[row.service_id], row.generation)
        for row in self.frontends.values():
            assert row.service_id in self.names, "a frontend of a Service without a name"
            port = self.names[row.service_id].port
            # One of an older generation is a stray, and about to be deleted.
            if row.policies.restricted and row.generation == newest[row.service_id]:
                assert self.ranges_of(row.service_id), "nobody may come to a frontend"
            for policy in row.policies.by_class:
                for slot in range(policy.first, policy.first + policy.size):
                    backend = self.backends.get(BackendSlot(row.service_id, row.generation, slot))
                    assert backend, "a frontend leads to an empty slot"
                    place = (backend.address, backend.port)
                    assert place in self.ever[port]
                    assert self.endpoints[EndpointRow(*place, port.protocol)]
                    if row.policies.affinity_seconds:
                        key = Position(row.service_id, row.generation, *place)
                        assert slot in self.positions[key].slots

    def ranges_of(self, service_id: int) -> list[Network]:
        """Give the ranges of clients of a service port, sorted."""
        return sorted(row.network for row in self.ranges if row.service_id == service_id)

    def meaning(self) -> dict[Frontend, tuple[object, ...]]:
        """Say what every frontend means, without ids: service port, backends, policies, ranges."""
        meaning: dict[Frontend, tuple[object, ...]] = {}
        for frontend, row in self.frontends.items():
            name = self.names[row.service_id]
            slots = sorted(
                (key.slot, one.address, one.port, one.hairpin)
                for key, one in self.backends.items()
                if (key.service_id, key.generation) == (row.service_id, row.generation)
            )
            ranges = self.ranges_of(row.service_id)
            meaning[frontend] = (name.port, name.number, slots, row.policies, ranges)
        return meaning

    def leftovers(self) -> set[BackendSlot]:
        """Give the backend rows that no frontend's generation accounts for."""
        current = {(row.service_id, row.generation) for row in self.frontends.values()}
        return {one for one in self.backends if (one.service_id, one.generation) not in current}

    def recount_endpoints(self, books: Books) -> None:
        """Count what the books hold, and keep what strays may still lead to."""
        held = Counter(
            EndpointRow(*place, one.port.protocol)
            for one in books.ledger
            for place in one.counters()
        )
        self.endpoints = held + Counter({row: 1 for row in self.endpoints if self.endpoints[row]})

    def _operations(self, plan: Plan, random: Random) -> Iterator[Callable[[], object]]:
        for phase in PHASES:
            rows = list(getattr(plan, phase))
            random.shuffle(rows)
            for row in rows:
                yield partial(getattr(self, f"_{phase}"), row)

    def _names_put(self, row: ServiceName) -> None:
        self.names[row.service_id] = row

    def _endpoints_put(self, row: EndpointRow) -> None:
        self.endpoints[row] += 1

    def _endpoints_left(self, row: EndpointRow) -> None:
        assert self.endpoints[row] > 0
        self.endpoints[row] -= 1

    def _backends_put(self, row: BackendRow) -> None:
        slot = BackendSlot(row.service_id, row.generation, row.slot)
        assert slot not in self.backends, "a backend was overwritten in place"
        self.backends[slot] = row

    def _positions_put(self, row: PositionRow) -> None:
        assert row.position not in self.positions, "a position was overwritten in place"
        self.positions[row.position] = row

    def _positions_deleted(self, position: Position) -> None:
        del self.positions[position]

    def _ranges_put(self, row: RangeRow) -> None:
        self.ranges.add(row)

    def _ranges_deleted(self, row: RangeRow) -> None:
        self.ranges.remove(row)

    def _frontends_put(self, row: FrontendRow) -> None:
        assert isinstance(row.policies, Policies)
        self.frontends[row.frontend] = row

    def _frontends_deleted(self, frontend: Frontend) -> None:
        del self.frontends[frontend]
        self.vanished.add(frontend)

    def _backends_deleted(self, slot: BackendSlot) -> None:
        del self.backends[slot]

    def _names_deleted(self, service_id: int) -> None:
        del self.names[service_id]


def new_books(node_name: str = "here", *, max_backends: int = 1000, at_once: int = 500) -> Books:
    """Make the books of an agent that has just started."""
    return Books(Cluster(node_name), CONFIG, max_backends=max_backends, at_once=at_once)


def adopt_from(kernel: Kernel, books: Books) -> None:
    """Let the books begin from what the kernel holds."""
    books.adopt(
        list(kernel.names.values()),
        list(kernel.frontends.values()),
        list(kernel.backends.values()),
        list(kernel.positions.values()),
        list(kernel.ranges),
    )
    kernel.recount_endpoints(books)
