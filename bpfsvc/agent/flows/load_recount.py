"""Counts the connections of backends anew, for the schedulers that compare their numbers.

The programs add and take back each connection once, so their numbers are right but for entries that
the kernel evicts in a flood of first packets. Each sweep of the connection GC counts the entries
that it reads. Connections come and go meanwhile, so the right number lies between two bounds; a
number outside is corrected to the nearer bound by a difference, which the kernel adds
(``bpf/path/agent/recount.h``). While connections neither begin nor end, both bounds are the same.

Connections that began while their Service did not count are counted from then on.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping

from bpfsvc.datapath.bpf_map import Block
from bpfsvc.datapath.maps.backend_loads import BackendLoad, Load, read_loads
from bpfsvc.datapath.maps.pins import Pinned
from bpfsvc.datapath.maps.recount_program import RecountProgram
from bpfsvc.metrics.sums import Sums
from bpfsvc.services.scheduling.extra import CandidateRun, candidate_rows

_NONE = BackendLoad()


def correction(counted: Load, before: Load, after: Load, chosen: int) -> Load:
    """Return what must be added to the programs' numbers.

    * ``counted``: by the entries.
    * ``before``, ``after``: the programs' numbers around the counting.
    * ``chosen``: how often the backend was chosen meanwhile, at most.
    """
    # At most so many active ones have left meanwhile; and of inactive ones, came and gone.
    left = max(chosen - (after.active - before.active), 0)
    came = left + chosen
    gone = max(came - (after.inactive - before.inactive), 0)
    return Load(
        _to_bounds(after.active, counted.active - left, counted.active + chosen),
        _to_bounds(after.inactive, counted.inactive - gone, counted.inactive + came),
    )


def _to_bounds(number: int, low: int, high: int) -> int:
    return min(max(number, low), high) - number


class LoadRecount:
    """Counts for one node."""

    def __init__(self, pinned: Pinned) -> None:
        self._candidates = pinned.map("candidates")
        self._service = pinned.layout.maps["candidates"].key.pick("service")
        self._loads = pinned.map("backend_loads")
        self._load = pinned.layout.maps["backend_loads"].value
        self._choices = Sums(pinned.map("backend_counters"))
        self._choices_at = pinned.layout.maps["backend_counters"].value.names.index("connections")
        self._entry = pinned.layout.maps["connections"].value.pick(
            "service", "counters", "reply", "counted"
        )
        self._is_counted = pinned.layout.constant("COUNTED")
        self._is_inactive = pinned.layout.constant("COUNTED_INACTIVE")
        self._program = RecountProgram(pinned)

    def begin(self) -> Recount | None:
        """Begin to count; None if no Service needs it."""
        services: set[int] = set()
        backends: set[int] = set()
        for key, value in self._candidates.items():
            services.add(self._service.unpack(key)[0])
            backends.update(counters for counters, _ in candidate_rows(CandidateRun(value)))
        return Recount(self, services, backends) if services else None

    def loads(self) -> dict[int, BackendLoad]:
        """Return the programs' numbers that are not 0, by the ids of counters."""
        return read_loads(self._loads, self._load)

    def choices(self, backends: Iterable[int]) -> dict[int, int]:
        """Return how often each backend was chosen so far."""
        sums, at = self._choices, self._choices_at
        return {backend: sums.fields(sums.entry(backend))[at] for backend in backends}

    def entries(self, block: Block) -> Iterator[tuple[int, int, int, int]]:
        """Yield number, service, id of counters and state of entries for requests."""
        for at, (service, counters, reply, counted) in enumerate(
            self._entry.iter_unpack(block.values)
        ):
            if counters and not reply:
                yield at, service, counters, counted

    def is_counted(self, state: int) -> bool:
        """True if an entry of this state is in the load of its backend."""
        return bool(state & self._is_counted)

    def is_active(self, state: int) -> bool:
        """True if an entry of this state is in the load as an active connection."""
        return not state & self._is_inactive

    def correct(self, differences: Mapping[int, Load], uncounted: list[bytes]) -> int:
        """Add differences, and count uncounted flows; return how many numbers were wrong."""
        self._program.add((backend, *load) for backend, load in differences.items())
        self._program.count(uncounted)
        return len(differences)


class Recount:
    """One count: add all entries of ``new_connections``, then all entries of ``connections``."""

    def __init__(self, of: LoadRecount, services: set[int], backends: set[int]) -> None:
        """``services`` and ``backends`` are counted; backends are ids of counters."""
        self._of, self._services = of, services
        # Choices are read first here and last at the end: no choice between is missed.
        self._chosen = of.choices(backends | of.loads().keys())
        self._before = of.loads()
        self._active, self._inactive = Counter[int](), Counter[int]()
        self._moving: set[bytes] = set()
        self._uncounted: list[bytes] = []

    def add_new(self, block: Block) -> None:
        """Count entries that may move to ``connections`` before they are read there."""
        for at, service, counters, state in self._of.entries(block):
            self._moving.add(block.key(at))
            self._add(block, at, service, counters, state)

    def add(self, block: Block) -> None:
        """Count entries of ``connections``."""
        for at, service, counters, state in self._of.entries(block):
            if not self._moving or block.key(at) not in self._moving:
                self._add(block, at, service, counters, state)

    def _add(self, block: Block, at: int, service: int, counters: int, state: int) -> None:
        if self._of.is_counted(state):
            (self._active if self._of.is_active(state) else self._inactive)[counters] += 1
        elif service in self._services:
            self._uncounted.append(block.key(at))

    def end(self) -> int:
        """Correct the programs' numbers; return how many were wrong."""
        after = self._of.loads()
        chosen = self._of.choices(self._chosen)
        differences = {}
        for backend, so_far in self._chosen.items():
            counted = Load(self._active[backend], self._inactive[backend])
            before, now = self._before.get(backend, _NONE), after.get(backend, _NONE)
            come = chosen[backend] - so_far
            difference = correction(counted, before.of_packets, now.of_packets, come)
            if any(difference):
                differences[backend] = difference
        return self._of.correct(differences, self._uncounted)
