"""Which scheduler chooses one of several endpoints, and which endpoints it leaves out."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from bpfsvc.base.address import endpoint_text
from bpfsvc.datapath.maps.backend_loads import Load
from bpfsvc.explain.answer import Outcome
from bpfsvc.services.entries import Place
from bpfsvc.services.schedulers import Schedule
from bpfsvc.services.scheduling import scheduler_text

Loads = Callable[[int], Load]
"""Returns the load of a backend by the id of its counters."""

_HOW = {
    Schedule.RANDOM: "one of {} endpoints at random",
    Schedule.ROUND: "{} endpoints take turns",
    Schedule.SOURCE: "the client's address decides among {} endpoints",
    Schedule.SOURCE_PORT: "the client's address and port decide among {} endpoints",
    Schedule.DESTINATION: "the address of the Service decides among {} endpoints",
    Schedule.MAGLEV: "the client's address decides among {} endpoints",
    Schedule.MAGLEV_PORT: "the client's address and port decide among {} endpoints",
    Schedule.LC: "the least loaded of {} endpoints",
    Schedule.WLC: "the least loaded of {} endpoints, by weight",
    Schedule.SED: "the one of {} endpoints with the shortest expected delay",
    Schedule.NQ: "the first idle one of {} endpoints, or that with the shortest expected delay",
    Schedule.OVF: "the first of {} endpoints that has room, those of the highest weight first",
    Schedule.TWOS: "the less loaded one of two at random, of {} endpoints",
}

_BY_WEIGHT = (Schedule.RANDOM, Schedule.ROUND)
"""Schedules that have tables for weights only."""

_ALWAYS = (Schedule.SOURCE, Schedule.DESTINATION, Schedule.MAGLEV)
"""Schedules that choose the same endpoint at every question about one client."""


def schedule_reasons(outcome: Outcome) -> Iterator[str]:
    """Yield the scheduler, and what it chooses where that is always the same."""
    policy, schedule = outcome.policy, Schedule(outcome.policies.schedule)
    scheduler = scheduler_text(schedule.name.lower(), policy.table)
    name = f"scheduler {scheduler}"
    if policy.size and outcome.verdict == "reject":
        if schedule.may_refuse:
            yield f"{name}: every endpoint has more active connections than its weight: rejected"
        else:
            yield f"{name}: the place of this client has an endpoint of weight 0: rejected"
    elif policy.size > 1 and scheduler == "fo":
        yield f"{name}: the one of {policy.size} endpoints with the highest weight"
    elif policy.size > 1:
        how = _HOW[schedule].format(policy.size)
        yield f"{name}: {how}{', by weight' if policy.table and schedule in _BY_WEIGHT else ''}"
        if schedule in _ALWAYS and not outcome.policies.affinity_seconds:
            yield f"that is {endpoint_text(*outcome.backend)} for this client"


def load_reasons(outcome: Outcome, loads: Loads) -> Iterator[str]:
    """Yield what the loads of the endpoints are, where they are compared."""
    if not Schedule(outcome.policies.schedule).counts:
        return
    counters = outcome.owner.counters()
    for one in dict.fromkeys(each.place for each in outcome.backends):
        active, inactive = loads(counters[one])
        chosen = ", chosen now" if one == outcome.backend else ""
        yield f"{endpoint_text(*one)}: {active} active, {inactive} inactive{chosen}"


def quiesced(outcome: Outcome) -> set[Place]:
    """Return the backends of the service port that are not chosen for such clients.

    Of those that are eligible, these are the ones of weight 0.
    """
    chosen = {one.place for one in outcome.backends}
    return {one.place for one in outcome.owner.backends()} - chosen
