"""Which scheduler chooses one of several endpoints, and which endpoints it leaves out."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator

from bpfsvc.base.address import endpoint_text, unpack
from bpfsvc.datapath.maps.backend_loads import Load
from bpfsvc.explain.answer import Outcome
from bpfsvc.services.entries import Place
from bpfsvc.services.scheduling.extra import COMPARED
from bpfsvc.services.scheduling.maps import LocalityEntry, among
from bpfsvc.services.scheduling.schedulers import Schedule, counts_connections, scheduler_text
from bpfsvc.services.scheduling.slow_start import FULL, GRADUAL, Shares

Loads = Callable[[int], Load]
"""Returns the load of a backend by the id of its counters."""

Kept = Callable[[LocalityEntry], Collection[int]]
"""Returns the backends that an address keeps to, by the ids of their counters."""

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
    Schedule.LBLC: "the one chosen last for this address, or the least loaded of {}, by weight",
    Schedule.LBLCR: "the least loaded of the endpoints that this address has, or of {}, by weight",
}

_BY_WEIGHT = (Schedule.RANDOM, Schedule.ROUND)
"""Schedules that have tables for weights only."""

_ALWAYS = (Schedule.SOURCE, Schedule.DESTINATION, Schedule.MAGLEV)
"""Schedules that choose the same endpoint at every question about one client."""


def schedule_reasons(outcome: Outcome) -> Iterator[str]:
    """Yield the scheduler, and its choice if the choice is always the same."""
    policy, schedule = outcome.chosen_by, Schedule(outcome.policies.schedule)
    scheduler = scheduler_text(schedule.name.lower(), policy.table)
    name = f"scheduler {scheduler}"
    if policy.size and outcome.verdict == "reject":
        if outcome.policies.limit and outcome.backend[1]:
            yield "every endpoint has as many connections as it may have: rejected"
        elif schedule.may_refuse:
            yield f"{name}: every endpoint has more active connections than its weight: rejected"
        else:
            yield f"{name}: the place of this client has an endpoint of weight 0: rejected"
    elif policy.size > 1 and scheduler == "fo":
        best = f", {endpoint_text(*outcome.backend)}" if outcome.is_chosen else ""
        yield f"{name}: the one of {policy.size} endpoints with the highest weight{best}"
    elif policy.size > 1:
        how = _HOW[schedule].format(policy.size)
        yield f"{name}: {how}{', by weight' if policy.table and schedule in _BY_WEIGHT else ''}"
        if schedule in _ALWAYS and not outcome.policies.affinity_seconds:
            if outcome.is_chosen:
                yield f"that is {endpoint_text(*outcome.backend)} for this client"
            else:
                yield "which endpoint that is does not follow from this sysdump"


def share_reasons(outcome: Outcome, shares: Shares) -> Iterator[str]:
    """Yield the new endpoints, which get only a share of their connections."""
    schedule, policy = Schedule(outcome.policies.schedule), outcome.chosen_by
    name, _, _ = scheduler_text(schedule.name.lower(), policy.table).partition(",")
    if policy.size < 2 or not policy.table or name not in GRADUAL:
        return
    for endpoint in dict.fromkeys(backend.place for backend in outcome.backends):
        share = shares.get(endpoint[0])
        if share is not None:
            percent = 100 * share // FULL
            new = endpoint_text(*endpoint)
            yield f"{new} is new: its share is {percent} % of the usual (slow start)"


def load_reasons(outcome: Outcome, loads: Loads, moment: str = "now") -> Iterator[str]:
    """Yield the loads of the endpoints, if the scheduler compares them; ``moment``: of these."""
    if not counts_connections(outcome.policies):
        return
    if outcome.policies.limit:
        yield (
            f"an endpoint may have {outcome.policies.limit} open connections through this node"
            " (max-connections-per-backend)"
        )
    counters = outcome.owner.counters()
    for endpoint in dict.fromkeys(backend.place for backend in outcome.backends):
        active, inactive = loads(counters[endpoint])
        is_chosen = endpoint == outcome.backend and outcome.verdict == "dnat"
        chosen = f", chosen {moment}" if is_chosen else ""
        yield f"{endpoint_text(*endpoint)}: {active} active, {inactive} inactive{chosen}"


def locality_reasons(outcome: Outcome, kept: Kept) -> Iterator[str]:
    """Yield the endpoints that the address keeps, and why the choice is one of them or not."""
    owner, policy = outcome.owner, outcome.chosen_by
    schedule = Schedule(outcome.policies.schedule)
    if not schedule.is_local or outcome.verdict != "dnat":
        return
    address = unpack(outcome.frontend.address)
    if policy.size > COMPARED:
        yield f"of more than {COMPARED} endpoints two are drawn: {address} keeps to none"
        return
    if outcome.client == "node":
        yield f"processes of the node get the least loaded of all, whatever {address} has"
        return
    key = LocalityEntry(owner.service_id, outcome.frontend.address, among(policy), schedule)
    had, counters = kept(key), owner.counters()
    usable = [backend.place for backend in outcome.backends if counters[backend.place] in had]
    texts = ", ".join(endpoint_text(*endpoint) for endpoint in usable)
    if not had:
        yield f"{address} has no endpoint yet: it gets the least loaded of all"
    elif not usable:
        yield f"what {address} had is gone or of weight 0: it gets the least loaded of all"
    elif outcome.policies.affinity_seconds:
        yield f"{address} has {texts}, for clients who come the first time"
    elif not outcome.is_chosen:
        yield f"{address} has {texts}"
    elif outcome.backend in usable:
        yield f"{address} has {texts}, and no other one is needed now"
    else:
        yield (
            f"{address} has {texts}: overloaded (more active connections than its weight), while"
            " another one has less than half of its own: it gets the least loaded of all"
        )


def quiesced(outcome: Outcome) -> set[Place]:
    """Return the backends of the service port that are not chosen for such clients.

    Among the eligible backends, these have weight 0.
    """
    chosen = {backend.place for backend in outcome.backends}
    return {backend.place for backend in outcome.owner.backends()} - chosen
