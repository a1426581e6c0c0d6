"""The view of ``bpfsvc services`` and ``bpfsvc top``: service ports and traffic at one moment."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache

from bpfsvc.inspect.policies import SAID
from bpfsvc.inspect.records import Records, Row
from bpfsvc.inspect.services.connect_times import ConnectTimes
from bpfsvc.inspect.services.facts import (
    ACTIVE,
    INACTIVE,
    BackendFacts,
    FrontendFacts,
    ServicePortFacts,
    Treatments,
)
from bpfsvc.inspect.services.traffic import Amounts, Failed, Refused, Traffic, rates
from bpfsvc.model.answers import BackendFailures

_MISSING = {
    "host": "UDP sockets of the node's processes",
    "all": "sockets of pods and of UDP sockets of the node's processes",
}
"""By the setting: sockets in no list, where the node's TCP sockets can be listed."""


@dataclass(frozen=True, slots=True)
class View:
    """Service ports and their traffic.

    * ``socket_lb``: which sockets are translated: off, host, all; "" if that is not known.
    * ``seconds``: over which ``traffic`` is a rate; None where it is counts.
    * ``listed``: the node's TCP sockets could be listed.
    * ``recent``: what failed in the last one or two minutes, by the index of counters; None if no
      agent says it.
    """

    ports: Sequence[ServicePortFacts]
    socket_lb: str
    traffic: Traffic | None = None
    seconds: float | None = None
    listed: bool = True
    recent: Mapping[int, BackendFailures] | None = None

    @property
    def note(self) -> str:
        """The connections that the numbers leave out; "" if they leave out none."""
        if not any(port.partial for port in self.ports):
            return ""
        carriers = _MISSING.get(self.socket_lb, "sockets") if self.listed else "sockets"
        return (
            f"Note: connections of {carriers} are not in ACTIVE and INACTIVE, because the"
            " kernel has no list of them; so 12+ means at least 12, and - means that none is known"
            f" (socket LB{f': {self.socket_lb}' if self.socket_lb else ''})."
        )

    def failed_lately(self, backend: BackendFacts) -> Failed | None:
        """Return the recent failures of a backend; None if they are not known."""
        if self.recent is None or not backend.counters:
            return None
        failures = self.recent.get(backend.counters)
        if failures is None:
            return Failed()
        return Failed(failures.refused, failures.unanswered, failures.unreachable)


def with_rates(before: View, now: View) -> View:
    """Return a view with the counts per second between two views with traffic."""
    if before.traffic is None or now.traffic is None:
        raise ValueError("rates need two views with traffic")
    seconds = now.traffic.at - before.traffic.at
    return replace(now, traffic=rates(before.traffic, now.traffic), seconds=seconds)


# -- texts that tables, documents and changes share --


def words(frontend: FrontendFacts) -> tuple[str, ...]:
    """Return the special treatments at a frontend: ``masquerade=node,other``, ``local=other``.

    A word without classes is about all clients; forwarding to all backends has no word.
    """
    of_clients = _words(frontend.clients)
    return ("restricted", *of_clients) if frontend.restricted else of_clients


@lru_cache(maxsize=1024)
def _words(clients: Treatments) -> tuple[str, ...]:
    classes: dict[str, list[str]] = {}
    for clients_class, treatment in zip(clients._fields, clients, strict=True):
        if treatment.local:
            classes.setdefault("local", []).append(clients_class)
        if treatment.action != "forward":
            classes.setdefault(treatment.action, []).append(clients_class)
    return tuple(
        word if len(clients_class) == len(clients) else f"{word}={','.join(clients_class)}"
        for word, clients_class in classes.items()
    )


def title(port: ServicePortFacts) -> str:
    """Return name, protocol and family of a service port."""
    return " ".join(filter(None, (port.text, port.protocol, port.family)))


def connection_texts(port: ServicePortFacts, active: int, inactive: int) -> tuple[str, str]:
    """Return numbers of connections of a service port: ``12``, ``12+`` for 12 or more, ``-``."""
    return _count_text(port, ACTIVE, active), _count_text(port, INACTIVE, inactive)


def _count_text(port: ServicePortFacts, name: str, number: int) -> str:
    if name not in port.partial:
        return str(number)
    return f"{number}+" if number else "-"


COUNTS = ("CONNS", "INPKTS", "OUTPKTS", "INBYTES", "OUTBYTES", "REJECTED", "DROPPED", "FAILED")
RATES = ("CPS", "INPPS", "OUTPPS", "INBPS", "OUTBPS", "REJECTED", "DROPPED", "FAILED")
"""Names of ipvsadm, in another order: as :class:`Amounts`, which begins with the request's."""

CONNECT_SHARES = {"CONNECT MEDIAN": 0.5, "CONNECT P95": 0.95}
"""By column: of which share of connects it says within which time they were answered."""

COLUMN_ORDER = ("connections", "packets", "reply_packets", "bytes", "reply_bytes")
"""The order of these columns."""


def in_order(amounts: Amounts) -> tuple[float, ...]:
    """Return amounts in the order of the columns."""
    return tuple(getattr(amounts, name) for name in COLUMN_ORDER)


def connect_texts(times: ConnectTimes) -> tuple[str, ...]:
    """Return the cells of :data:`CONNECT_SHARES`; ``-`` without connects."""
    quantiles = map(times.quantile, CONNECT_SHARES.values())
    return tuple("-" if quantile is None else quantile.text for quantile in quantiles)


def failed_text(failed: Failed | None) -> str:
    """Return ``3 refused, 1 unanswered``; ``0`` for none, ``-`` if it is not known."""
    if failed is None:
        return "-"
    texts = [f"{count} {reason}" for reason, count in failed._asdict().items() if count]
    return ", ".join(texts) or "0"


def number_text(value: float) -> str:
    """Return a count as it is, and a rate with one decimal below ten."""
    if isinstance(value, int):
        return str(value)
    return f"{value:.1f}" if 0 < value < 9.95 else f"{value:.0f}"


_COLUMNS = ("service", "protocol", "family")
_AMOUNTS = Amounts._fields
_REFUSED = Refused._fields
_FAILED = Failed._fields


def view_records(view: View) -> Iterator[Records]:
    """Yield the view as rows, to be compared with the rows of another view."""
    services: list[Row] = []
    backends: list[Row] = []
    counted = view.traffic is not None
    for port in view.ports:
        name = (port.text, port.protocol, port.family)
        shown = tuple(" ".join((frontend.text, *words(frontend))) for frontend in port.frontends)
        refused = view.traffic.refused_of(port) if view.traffic else ()
        row: Row = (port.affinity_seconds, port.source_ranges, shown, *refused)
        services.append((*name, port.scheduler, *port.said.values(), *row))
        for backend in port.backends:
            amounts: Row = ()
            if view.traffic:
                amounts = view.traffic.of_backend(port, backend) or ("",) * len(_AMOUNTS)
                amounts = (*amounts, *view.traffic.failed_of_backend(port, backend))
            known = port.known(backend.active, backend.inactive)
            numbers: Row = tuple("" if number is None else number for number in known)
            backends.append(
                (
                    *(*name, backend.text, backend.state, backend.weight, backend.half_open),
                    *(*numbers, *amounts),
                )
            )
    yield Records(
        "services",
        (
            *_COLUMNS,
            *("scheduler", *SAID, "affinity", "source_ranges", "frontends"),
            *(_REFUSED if counted else ()),
        ),
        services,
        keys=len(_COLUMNS),
    )
    yield Records(
        "backends",
        (
            *_COLUMNS,
            *("backend", "state", "weight", "half_open", "active", "inactive"),
            *((*_AMOUNTS, *_FAILED) if counted else ()),
        ),
        backends,
        keys=len(_COLUMNS) + 1,
    )
