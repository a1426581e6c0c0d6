"""Service ports with their frontends, backends and connections, as plain values.

A backend is

* ``ready`` if new connections of some clients may be sent to it: the frontends lead there, or
  connections overflow to it;
* ``quiesced`` if its weight is 0: its connections go on, and it gets no new ones;
* ``quarantined`` if it is ejected for a while, because connections to it failed;
* ``trial`` if that time is over: one probe at a time tries it, or all connections where other
  backends are too few;
* ``draining`` if it has connections of the service port and gets no new ones;
* ``unused`` if it is written and no frontend leads to it, as where another Service has the
  frontends.

The maps say no more: not whether an endpoint is terminating, nor the name of its pod.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

from bpfsvc.base.address import endpoint_text
from bpfsvc.services.entries import Place

READY, QUIESCED, DRAINING, UNUSED = "ready", "quiesced", "draining", "unused"
QUARANTINED, TRIAL = "quarantined", "trial"

ACTIVE, INACTIVE = "active", "inactive"


class Treatment(NamedTuple):
    """What one class of clients gets at a frontend.

    * ``action``: forward, masquerade, reject or drop.
    * ``backends``: among how many a backend is chosen.
    * ``local``: all of them are on this node, and the service port has others.
    """

    action: str
    backends: int
    local: bool


class Treatments(NamedTuple):
    """What each class of clients gets, by the names of the classes."""

    pod: Treatment
    node: Treatment
    other: Treatment


@dataclass(frozen=True, slots=True)
class FrontendFacts:
    """Where clients send to, and what they get there."""

    address: bytes
    port: int
    text: str
    restricted: bool
    clients: Treatments


@dataclass(frozen=True, slots=True)
class BackendFacts:
    """One backend; ``counters`` is the index of its counters, 0 if it has none any more.

    ``half_open``: attempts to open a TCP connection that are not in ``active``.

    ``clients``: the classes that it is chosen for, at any frontend. ``weight`` is meant as in
    ip_vs: 0 takes no new connections.
    """

    endpoint: Place
    state: str
    weight: int
    local: bool | None
    clients: tuple[str, ...]
    active: int
    inactive: int
    counters: int
    half_open: int = 0

    @property
    def text(self) -> str:
        """Its address and port."""
        return endpoint_text(*self.endpoint)


@dataclass(frozen=True, slots=True)
class ServicePortFacts:
    """One service port; ``namespace`` is empty if the kernel has no name for it any more.

    ``partial``: which numbers of connections, ``active`` or ``inactive``, leave out some that
    sockets carry. ``said``: values of annotations by name (:meth:`~.PolicyTexts.said`).
    ``zone_overload``: when connections overflow; empty if none do.
    """

    service: int
    namespace: str
    name: str
    port_name: str
    number: int
    protocol: str
    family: str
    scheduler: str
    said: Mapping[str, str]
    zone_overload: str
    affinity_seconds: int
    source_ranges: tuple[str, ...]
    frontends: tuple[FrontendFacts, ...]
    backends: tuple[BackendFacts, ...]
    partial: tuple[str, ...]

    @property
    def text(self) -> str:
        """Its name as all views show it."""
        if not self.namespace:
            return f"#{self.service}"
        return f"{self.namespace}/{self.name}:{self.port_name or self.number}"

    @property
    def active(self) -> int:
        """Active connections to all backends."""
        return sum(backend.active for backend in self.backends)

    @property
    def inactive(self) -> int:
        """Inactive connections to all backends."""
        return sum(backend.inactive for backend in self.backends)

    @property
    def half_open(self) -> int:
        """Attempts to open TCP connections to all backends."""
        return sum(backend.half_open for backend in self.backends)

    def known(self, active: int, inactive: int) -> tuple[int | None, int | None]:
        """Return numbers of connections as they are known: None for a 0 that may not be true."""
        return (
            None if not active and ACTIVE in self.partial else active,
            None if not inactive and INACTIVE in self.partial else inactive,
        )
