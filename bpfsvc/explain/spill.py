"""Whether a connection overflows from the near endpoints, and by which numbers."""

from __future__ import annotations

from collections.abc import Iterator

from bpfsvc.base.texts import count_text
from bpfsvc.datapath.maps.backend_loads import Load
from bpfsvc.explain.answer import Outcome
from bpfsvc.explain.schedule import Loads
from bpfsvc.services.entries import Place
from bpfsvc.services.scheduling.extra import SPILL_COMPARED, overflow_policy
from bpfsvc.services.scheduling.spill import THOUSAND, overload_text


def spilled_to(outcome: Outcome) -> set[Place]:
    """Return all endpoints that serve, if such connections may overflow to them."""
    every = overflow_policy(outcome.owner.extra) if outcome.policy.spills else None
    if every is None:
        return set()
    slots = outcome.owner.backends()[every.first : every.first + every.size]
    return {backend.place for backend in slots}


def spill_reasons(outcome: Outcome, loads: Loads) -> Iterator[str]:
    """Yield whether the connection overflows, and the numbers that decide."""
    every = spilled_to(outcome)
    if not every or outcome.verdict != "dnat":
        return
    ((*_, overload, inactive),) = outcome.owner.extra["spills"]
    policy, counters = outcome.policy, outcome.owner.counters()
    slots = outcome.owner.backends()[policy.first : policy.first + policy.size]
    near = {backend.place for backend in slots}

    def total(places: set[Place]) -> int:
        endpoint_loads: list[Load] = [loads(counters[endpoint]) for endpoint in places]
        return sum(load.active + (load.inactive if inactive else 0) for load in endpoint_loads)

    of_near, of_all, both = total(near), total(near | every), near | every
    kind = "connections" if inactive else "active connections"
    yield (
        f"the {count_text(len(near), 'near endpoint')} and all {len(both)} that serve have"
        f" {of_near} and {of_all} {kind}, on average {_mean(of_near, near)} and"
        f" {_mean(of_all, both)} (zone-overload {overload_text(overload)})"
    )
    if len(both) > SPILL_COMPARED:
        yield f"the programs add up the connections of {SPILL_COMPARED} endpoints"
    limit = f"{overload_text(overload)} times {_mean(of_all, both)}"
    limit = f"{limit} = {overload * of_all / THOUSAND / len(both):.2f}"
    if outcome.spilled:
        yield f"the near ones have more than {limit}: the connection overflows"
    else:
        yield f"the near ones do not have more than {limit}: the connection stays near"


def _mean(number: int, places: set[Place]) -> str:
    return f"{number / len(places):.2f}"
