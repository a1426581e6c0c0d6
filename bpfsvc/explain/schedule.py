"""Which scheduler chooses one of several endpoints, and which endpoints it leaves out."""

from __future__ import annotations

from collections.abc import Iterator

from bpfsvc.base.address import endpoint_text
from bpfsvc.explain.answer import Outcome
from bpfsvc.services.entries import Place
from bpfsvc.services.schedulers import Schedule
from bpfsvc.services.scheduling import scheduler_text

_HOW = {
    Schedule.RANDOM: "one of {} endpoints at random",
    Schedule.ROUND: "{} endpoints take turns",
    Schedule.SOURCE: "the client's address decides among {} endpoints",
    Schedule.SOURCE_PORT: "the client's address and port decide among {} endpoints",
    Schedule.DESTINATION: "the address of the Service decides among {} endpoints",
    Schedule.MAGLEV: "the client's address decides among {} endpoints",
    Schedule.MAGLEV_PORT: "the client's address and port decide among {} endpoints",
}

_BY_WEIGHT = (Schedule.RANDOM, Schedule.ROUND)
"""Schedules that have tables for weights only."""

_ALWAYS = (Schedule.SOURCE, Schedule.DESTINATION, Schedule.MAGLEV)
"""Schedules that choose the same endpoint at every question about one client."""


def schedule_reasons(outcome: Outcome) -> Iterator[str]:
    """Yield the scheduler, and what it chooses where that is always the same."""
    policy, schedule = outcome.policy, Schedule(outcome.policies.schedule)
    name = f"scheduler {scheduler_text(schedule.name.lower(), weighted=policy.table > 0)}"
    if policy.size and outcome.verdict == "reject":
        yield f"{name}: the place of this client has an endpoint of weight 0: rejected"
    elif policy.size > 1:
        how = _HOW[schedule].format(policy.size)
        yield f"{name}: {how}{', by weight' if policy.table and schedule in _BY_WEIGHT else ''}"
        if schedule in _ALWAYS and not outcome.policies.affinity_seconds:
            yield f"that is {endpoint_text(*outcome.backend)} for this client"


def quiesced(outcome: Outcome) -> set[Place]:
    """Return the backends of the service port that are not chosen for such clients.

    Of those that are eligible, these are the ones of weight 0.
    """
    chosen = {one.place for one in outcome.backends}
    return {one.place for one in outcome.owner.backends()} - chosen
