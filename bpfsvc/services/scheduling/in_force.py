"""How a Service chooses and leaves endpoints, by its annotations and those of its slices.

A value that cannot be used is reported, and the last good one stays in force: a typo must not move
the clients of a Service that works. So the last values are remembered, of the few Services that
have such annotations. What a former agent knew is lost: after a restart, a bad value counts as
none.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import NamedTuple, TypeVar

from bpfsvc.model import EndpointSlice, Service
from bpfsvc.services.cache import ServiceKey
from bpfsvc.services.entries import Place
from bpfsvc.services.scheduling.quarantine import Quarantines, Rule, parse_quarantine
from bpfsvc.services.scheduling.removal import (
    DRAIN_SECONDS,
    USUAL_REMOVAL,
    OnRemoval,
    Removal,
    parse_on_removal,
    parse_seconds,
)
from bpfsvc.services.scheduling.schedulers import Scheduler, parse_scheduler
from bpfsvc.services.scheduling.slow_start import NO_SHARES, Shares, SlowStarts
from bpfsvc.services.scheduling.spill import parse_overload
from bpfsvc.services.scheduling.weights import (
    NO_SLICES,
    NO_WEIGHTS,
    USUAL,
    SliceName,
    Weights,
    parse_weight,
    parse_weights,
)

_T = TypeVar("_T")

_IN_FORCE = "the last good value stays in force"


class Scheduling(NamedTuple):
    """How a Service chooses among its endpoints, and what it does about those that leave.

    * ``scheduler``: None: the node's.
    * ``weights``: what the Service says of its endpoints.
    * ``of_slices``: the weight of each slice that has one.
    * ``removal``: what becomes of connections to an endpoint that leaves.
    * ``slow_start``: the seconds until a new endpoint has its whole share; 0: at once.
    * ``shares``: those of the endpoints that are new now.
    * ``quarantine``: when endpoints that connections fail to are left out; None: never.
    * ``away``: those that are left out now, in the order in which they were taken out.
    * ``zone_overload``: in thousandths, how much near endpoints carry before connections spill
      over (:mod:`bpfsvc.services.scheduling.spill`); 0: these never do.
    """

    scheduler: Scheduler | None = None
    weights: Weights = NO_WEIGHTS
    of_slices: Mapping[SliceName, int] = NO_SLICES
    removal: Removal = USUAL_REMOVAL
    slow_start: int = 0
    shares: Shares = NO_SHARES
    quarantine: Rule | None = None
    away: tuple[Place, ...] = ()
    trial: tuple[Place, ...] = ()
    zone_overload: int = 0


USUAL_SCHEDULING = Scheduling()
"""That of a Service without such annotations; one object for all of them."""


_TEXTS = {
    "random": "random",
    "round": "rr",
    "source": "sh",
    "source_port": "sh,sh-port",
    "destination": "dh",
    "maglev": "mh",
    "maglev_port": "mh,mh-port",
}
"""Names of :class:`Schedule`, in lower case, in ip_vs's words; others are called the same."""


def scheduler_text(kind: str, places: int) -> str:
    """Return the scheduler that a kind of number stands for.

    With a table turns are ``wrr``, and what is always the same is ``fo``. ``places``: the length of
    the longest table, 0 without one.
    """
    if kind == "round" and places:
        return "wrr"
    return "fo" if kind == "random" and places == 1 else _TEXTS.get(kind, kind)


class Schedulings:
    """The values in force of all Services, and what is wrong with their annotations."""

    def __init__(self) -> None:
        self._in_force: dict[ServiceKey, Scheduling] = {}
        self._faults: dict[ServiceKey, str] = {}
        self._slow_starts = SlowStarts()
        self.quarantines = Quarantines()

    def read(
        self,
        key: ServiceKey,
        service: Service | None,
        slices: Iterable[EndpointSlice],
        now: float,
    ) -> Scheduling:
        """Return what is in force for a Service as it is now; remember it for the next time."""
        before = self._in_force.pop(key, USUAL_SCHEDULING) if self._in_force else USUAL_SCHEDULING
        if self._faults:
            self._faults.pop(key, None)
        if service is None or not service.is_proxied or not _has_annotations(service, slices):
            self._slow_starts.forget(key)
            self.quarantines.forget(key)
            return USUAL_SCHEDULING
        scheduling, faults = read_scheduling(service, slices, before)
        if faults:
            self._faults[key] = "; ".join(faults)
        if scheduling.quarantine:
            away, trial = self.quarantines.watch(key, scheduling.quarantine)
            scheduling = scheduling._replace(away=away, trial=trial)
        else:
            self.quarantines.forget(key)
        if scheduling.slow_start:
            shares = self._slow_starts.read(key, scheduling.slow_start, slices, now)
            scheduling = scheduling._replace(shares=shares)
        else:
            self._slow_starts.forget(key)
        self._in_force[key] = scheduling
        return scheduling

    def in_force(self, key: ServiceKey) -> Scheduling:
        """Return what was in force for a Service when it was read last; any thread may ask."""
        return self._in_force.get(key, USUAL_SCHEDULING)

    def growing(self, now: float) -> set[ServiceKey]:
        """Return the Services to be planned again now, as an endpoint's share grows."""
        return self._slow_starts.due(now)

    def fault(self, key: ServiceKey) -> str:
        """Return what is wrong with the annotations of a Service, "" if nothing is."""
        return self._faults.get(key, "")


def read_scheduling(
    service: Service, slices: Iterable[EndpointSlice], before: Scheduling = USUAL_SCHEDULING
) -> tuple[Scheduling, list[str]]:
    """Return what the annotations say, and a text for each that cannot be used.

    ``before`` has the values that are used in place of bad ones.
    """
    reader = _Reader()
    read = reader.read
    scheduler = read("scheduler", service.scheduler, parse_scheduler, before.scheduler, None)
    weights = read("weights", service.weights, parse_weights, before.weights, NO_WEIGHTS)
    of_slices = {
        (one.kind, one.name): read(
            f"weight of {one.kind} {one.name}",
            one.weight,
            parse_weight,
            before.of_slices.get((one.kind, one.name), USUAL),
            USUAL,
        )
        for one in slices
        if one.weight is not None
    }
    kind, seconds = before.removal
    removal = Removal(
        read("on-removal", service.on_removal, parse_on_removal, kind, OnRemoval.KEEP),
        read("drain-seconds", service.drain_seconds, parse_seconds, seconds, DRAIN_SECONDS),
    )
    slow_start = read(
        "slow-start-seconds", service.slow_start_seconds, parse_seconds, before.slow_start, 0
    )
    quarantine = read("quarantine", service.quarantine, parse_quarantine, before.quarantine, None)
    overload = read("zone-overload", service.zone_overload, parse_overload, before.zone_overload, 0)
    found = Scheduling(
        scheduler,
        weights,
        of_slices or NO_SLICES,
        removal,
        slow_start,
        quarantine=quarantine,
        zone_overload=overload,
    )
    return found, reader.faults


class _Reader:
    """Reads annotations, and notes what is wrong with them."""

    def __init__(self) -> None:
        self.faults: list[str] = []

    def read(
        self, name: str, text: str | None, parse: Callable[[str], _T], last: _T, none: _T
    ) -> _T:
        """Return what an annotation says: ``last`` if it cannot be used, ``none`` without it."""
        if text is None:
            return none
        try:
            return parse(text)
        except ValueError as error:
            self.faults.append(f"annotation bpfsvc.io/{name}: {error}; {_IN_FORCE}")
            return last


_NONE = (None,) * 7


def _has_annotations(service: Service, slices: Iterable[EndpointSlice]) -> bool:
    of_service = (
        *(service.scheduler, service.weights, service.slow_start_seconds),
        *(service.on_removal, service.drain_seconds, service.quarantine),
        service.zone_overload,
    )
    return of_service != _NONE or any(one.weight is not None for one in slices)
