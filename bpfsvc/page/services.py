"""Service ports as rows of a list: searched, sorted and cut into pages here, not in the browser."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cached_property
from typing import Any, NamedTuple

from bpfsvc.inspect.services.documents import service_port_object
from bpfsvc.inspect.services.facts import READY, BackendFacts, ServicePortFacts
from bpfsvc.inspect.services.view import View, words

MOST_ROWS = 200

_SHOWN = 3
"""Frontends of a row."""

_DRAWN = 12
"""Backends of a row with a share of their own; the others are one share."""


class ListQuery(NamedTuple):
    """Which rows are wanted.

    * ``search``: words; each is a part of a name, of a frontend or of a backend.
    * ``failing``: only service ports with failures or without a ready backend.
    * ``sort``: of :data:`ORDERS`. ``first``, ``size``: the part of all rows.
    """

    search: str = ""
    failing: bool = False
    sort: str = "name"
    first: int = 0
    size: int = 50


class ServiceList:
    """The service ports of one view."""

    def __init__(self, view: View) -> None:
        self._view = view

    def rows(self, query: ListQuery) -> dict[str, Any]:
        """Return the rows of a query, and how many service ports there are and match."""
        wanted = query.search.lower().split()
        ports = [
            port
            for port, text in zip(self._view.ports, self._texts, strict=True)
            if all(word in text for word in wanted)
            and (not query.failing or self._is_failing(port))
        ]
        order = _ORDERS[query.sort]
        if order:
            ports.sort(key=lambda port: order(self._view, port), reverse=True)
        shown = ports[query.first : query.first + min(query.size, MOST_ROWS)]
        return {
            "total": len(self._view.ports),
            "matching": len(ports),
            "first": query.first,
            "note": self._view.note,
            "rows": [self._row(port) for port in shown],
        }

    def detail(self, name: str, protocol: str, family: str) -> dict[str, Any] | None:
        """Return all that is known of a service port; None if the kernel does not hold it."""
        for port in self._view.ports:
            if (port.text, port.protocol, port.family) == (name, protocol, family):
                detail = service_port_object(self._view, port)
                for known, frontend in zip(detail["frontends"], port.frontends, strict=True):
                    known["words"] = list(words(frontend))
                return {"service": port.text, **detail}
        return None

    @cached_property
    def _texts(self) -> Sequence[str]:
        """What is searched, for each service port."""
        return [
            " ".join(
                (
                    port.text,
                    port.protocol,
                    *(frontend.text for frontend in port.frontends),
                    *(backend.text for backend in port.backends),
                )
            ).lower()
            for port in self._view.ports
        ]

    def _row(self, port: ServicePortFacts) -> dict[str, Any]:
        active, inactive = port.known(port.active, port.inactive)
        refused = self._view.traffic.refused_of(port) if self._view.traffic else None
        return {
            "service": port.text,
            "protocol": port.protocol,
            "family": port.family,
            "scheduler": port.scheduler,
            "frontends": [frontend.text for frontend in port.frontends[:_SHOWN]],
            "all_frontends": len(port.frontends),
            "backends": len(port.backends),
            "ready": _ready(port),
            "half_open": port.half_open,
            "active": active,
            "inactive": inactive,
            "at_least": list(port.partial),
            "failed_lately": self._failed_lately(port),
            "connections": _connections(self._view, port),
            "refused": refused._asdict() if refused else {},
            "shares": self._shares(port),
        }

    def _shares(self, port: ServicePortFacts) -> list[dict[str, Any]]:
        """Return the connections of the busiest backends, and of the others together."""
        counts = [(backend, self._count(port, backend)) for backend in port.backends]
        counts.sort(key=lambda pair: pair[1], reverse=True)
        shares = [
            {"backend": backend.text, "connections": number}
            for backend, number in counts[:_DRAWN]
            if number
        ]
        others = sum(number for _, number in counts[_DRAWN:])
        if others:
            shares.append({"backend": "others", "connections": others})
        return shares

    def _count(self, port: ServicePortFacts, backend: BackendFacts) -> float:
        amounts = self._view.traffic.of_backend(port, backend) if self._view.traffic else None
        return amounts.connections if amounts else 0

    def _failed_lately(self, port: ServicePortFacts) -> float | None:
        failures = [self._view.failed_lately(backend) for backend in port.backends]
        known = [sum(failed) for failed in failures if failed is not None]
        return sum(known) if known else None

    def _is_failing(self, port: ServicePortFacts) -> bool:
        return bool(self._failed_lately(port)) or not _ready(port)


def _ready(port: ServicePortFacts) -> int:
    return sum(backend.state == READY for backend in port.backends)


def _connections(view: View, port: ServicePortFacts) -> float:
    return view.traffic.of_port(port).connections if view.traffic else 0


_ORDERS: dict[str, Callable[[View, ServicePortFacts], float] | None] = {
    "name": None,  # as the view has them
    "connections": _connections,
    "active": lambda _, port: port.active,
    "half-open": lambda _, port: port.half_open,
}

ORDERS = tuple(_ORDERS)
