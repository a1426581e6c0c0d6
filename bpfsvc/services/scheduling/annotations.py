"""The table of annotations that say how a Service chooses and leaves endpoints.

A new annotation is a line in :data:`ANNOTATIONS` and a field of :class:`Scheduling` with the same
name. A field without a line, or a line without a field, is an error at import. The value is then
there for :mod:`bpfsvc.services.scheduling.placement`, which makes slots, tables and entries of it.

A value that cannot be used is reported, and the last good value stays in force: a typo must not
move the clients of a Service that works.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from enum import Flag, auto
from typing import Any, NamedTuple

from bpfsvc.base.near_misses import meant_text
from bpfsvc.model import EndpointSlice, Service
from bpfsvc.services.entries import Place
from bpfsvc.services.scheduling.numbers import parse_number
from bpfsvc.services.scheduling.quarantine import Rule, parse_quarantine
from bpfsvc.services.scheduling.removal import (
    DRAIN_SECONDS,
    OnRemoval,
    Removal,
    parse_on_removal,
    parse_seconds,
)
from bpfsvc.services.scheduling.schedulers import Scheduler, parse_scheduler
from bpfsvc.services.scheduling.slow_start import NO_SHARES, Shares
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


class Need(Flag):
    """What an annotation needs from the programs, beside its entries."""

    NOTHING = 0
    COUNTS = auto()
    """The connections of each backend are counted, whatever the scheduler."""
    OUTCOMES = auto()
    """The programs record how an attempt to connect ends."""


class Annotation(NamedTuple):
    """An annotation of Services: ``bpfsvc.io/`` and the name.

    * ``parse``: returns the value of a text; raises ``ValueError`` with one line.
    * ``default``: the value of a Service without the annotation.
    * ``needs``: what a Service with another value needs.
    * ``written``: the field of :class:`~bpfsvc.services.entries.Policies` that has the value, a
      number, for the programs; empty: none has it. Views of the maps show it by this line.
    """

    name: str
    parse: Callable[[str], Any]
    default: Any
    needs: Need = Need.NOTHING
    written: str = ""

    @property
    def field(self) -> str:
        """The name of the field in :class:`Scheduling`."""
        return self.name.replace("-", "_")


def _parse_limit(text: str) -> int:
    """Read a limit of connections. Raises ``ValueError`` with one line."""
    return parse_number(text, 1, 0xFFFF, "the limit")


ANNOTATIONS = (
    Annotation("scheduler", parse_scheduler, None),
    Annotation("weights", parse_weights, NO_WEIGHTS),
    Annotation("on-removal", parse_on_removal, OnRemoval.KEEP, written="removal"),
    Annotation("drain-seconds", parse_seconds, DRAIN_SECONDS),
    Annotation("slow-start-seconds", parse_seconds, 0),
    Annotation("quarantine", parse_quarantine, None, Need.OUTCOMES),
    Annotation("zone-overload", parse_overload, 0, Need.COUNTS),
    Annotation("max-connections-per-backend", _parse_limit, 0, Need.COUNTS, written="limit"),
)

WRITTEN = tuple(annotation for annotation in ANNOTATIONS if annotation.written)
"""The annotations whose values are fields of policies."""

_NAMES = frozenset(annotation.name for annotation in ANNOTATIONS)


class Scheduling(NamedTuple):
    """How a Service chooses among its endpoints, and what it does about endpoints that leave.

    Values of annotations:

    * ``scheduler``: how a new connection gets its endpoint; None: by the scheduler of the node.
    * ``weights``: the weights of endpoints, by address, node or zone.
    * ``on_removal``: what becomes of connections to an endpoint that leaves.
    * ``drain_seconds``: for how long connections stay that drain.
    * ``slow_start_seconds``: until a new endpoint has its whole share; 0: at once.
    * ``quarantine``: when endpoints that connections fail to are ejected; None: never.
    * ``zone_overload``: in thousandths, how much near endpoints carry before connections overflow
      (:mod:`bpfsvc.services.scheduling.spill`); 0: connections never overflow.
    * ``max_connections_per_backend``: how many open connections an endpoint may have by way of this
      node; 0: any number.

    What is known of its endpoints now:

    * ``of_slices``: the weight of each slice that has one.
    * ``shares``: the shares of new endpoints.
    * ``away``: the ejected endpoints, in the order in which they were ejected.
    * ``trial``: the endpoints that the next connection probes, in the same order.
    """

    scheduler: Scheduler | None
    weights: Weights
    on_removal: OnRemoval
    drain_seconds: int
    slow_start_seconds: int
    quarantine: Rule | None
    zone_overload: int
    max_connections_per_backend: int
    of_slices: Mapping[SliceName, int] = NO_SLICES
    shares: Shares = NO_SHARES
    away: tuple[Place, ...] = ()
    trial: tuple[Place, ...] = ()

    @property
    def removal(self) -> Removal:
        """What becomes of connections to an endpoint that leaves."""
        return Removal(self.on_removal, self.drain_seconds)

    @property
    def needs(self) -> Need:
        """What the annotations of the Service need from the programs."""
        needs = Need.NOTHING
        for annotation in ANNOTATIONS:
            if getattr(self, annotation.field) != annotation.default:
                needs |= annotation.needs
        return needs

    @property
    def written(self) -> dict[str, Any]:
        """The fields of :class:`~bpfsvc.services.entries.Policies` that annotations set."""
        return {annotation.written: int(getattr(self, annotation.field)) for annotation in WRITTEN}


USUAL_SCHEDULING = Scheduling(
    **{annotation.field: annotation.default for annotation in ANNOTATIONS}
)
"""The scheduling of a Service without annotations; one object for all of them."""


_ELSEWHERE = frozenset({"weight", "socket-lb"})
"""Annotations of slices and Pods."""


def has_annotations(service: Service, slices: Iterable[EndpointSlice]) -> bool:
    """True if a Service has an annotation of bpfsvc's, or one of its slices has a weight."""
    if any(name not in _ELSEWHERE for name, _ in service.annotations):
        return True
    return any(endpoint_slice.weight is not None for endpoint_slice in slices)


def read_scheduling(
    service: Service, slices: Iterable[EndpointSlice], before: Scheduling = USUAL_SCHEDULING
) -> tuple[Scheduling, list[str]]:
    """Return what the annotations say, and a text for each that cannot be used.

    ``before`` has the values that are used in place of bad ones.
    """
    texts = dict(service.annotations)
    faults = [*_unknown(texts)]
    fields = {}
    for annotation in ANNOTATIONS:
        last = getattr(before, annotation.field)
        fields[annotation.field] = _value(annotation, texts.get(annotation.name), last, faults)
    of_slices = {}
    for endpoint_slice in slices:
        if endpoint_slice.weight is not None:
            name = endpoint_slice.kind, endpoint_slice.name
            annotation = Annotation(f"weight of {' '.join(name)}", parse_weight, USUAL)
            last = before.of_slices.get(name, USUAL)
            of_slices[name] = _value(annotation, endpoint_slice.weight, last, faults)
    return Scheduling(**fields, of_slices=of_slices or NO_SLICES), faults


def _unknown(names: Iterable[str]) -> Iterator[str]:
    """Yield a text for each name that is nearly one of the table: others may be of a later version.

    A mistyped name would be ignored otherwise.
    """
    for name in names:
        if name not in _NAMES | _ELSEWHERE and (meant := meant_text(name, _NAMES)):
            yield f"annotation bpfsvc.io/{name} is unknown{meant}"


def _value(annotation: Annotation, text: str | None, last: Any, faults: list[str]) -> Any:
    """Return the value of a text: ``last`` if the text cannot be used, the default without one."""
    if text is None:
        return annotation.default
    try:
        return annotation.parse(text)
    except ValueError as error:
        faults.append(
            f"annotation bpfsvc.io/{annotation.name}: {error}; the last good value stays in force"
        )
        return last
