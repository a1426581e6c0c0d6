"""What a Service becomes: flat values, from which the entries of the kernel's maps are made.

Everything Kubernetes knows (types, policies, topology) is decided before these values are made,
and nothing below them knows what a NodePort is. Addresses are packed (see
:mod:`bpfsvc.base.address`), ports are plain numbers in host order, protocols are IPPROTO numbers.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from bpfsvc.base.address import (
    ANY_NODE_ADDRESS_V4,
    ANY_NODE_ADDRESS_V6,
    endpoint_text,
    unpack,
)
from bpfsvc.base.networks import Network
from bpfsvc.base.protocols import PROTOCOL_NAMES


class ServicePort(NamedTuple):
    """Identity of one entry of ``spec.ports`` in one address family."""

    namespace: str
    name: str
    port_name: str
    protocol: int
    family: int


class Frontend(NamedTuple):
    """Where clients send to. The wildcard addresses mean all of the node's own (NodePort)."""

    address: bytes
    port: int
    protocol: int

    @classmethod
    def rest(cls, address: bytes) -> Frontend:
        """Return the frontend of all ports and protocols of an address that no other one takes."""
        return cls(address, 0, 0)

    @property
    def is_rest(self) -> bool:
        """True for the frontend of all ports and protocols that no other one takes."""
        return (self.port, self.protocol) == (0, 0)


NODEPORT_TEXTS = {ANY_NODE_ADDRESS_V4: "nodeport", ANY_NODE_ADDRESS_V6: "nodeport6"}
"""What stands for every address of the node that accepts NodePorts, by the wildcard address."""


def frontend_text(frontend: Frontend) -> str:
    """Return ``10.96.0.10:53/UDP``, ``nodeport:30007/TCP`` or, for IPv6, ``nodeport6:30007/TCP``.

    A protocol without a name stays a number.
    """
    address, port, protocol = frontend
    if frontend.is_rest:
        return f"{unpack(address)} (any other port)"
    nodeport = NODEPORT_TEXTS.get(address)
    text = f"{nodeport}:{port}" if nodeport else endpoint_text(address, port)
    return f"{text}/{PROTOCOL_NAMES.get(protocol, protocol)}"


class Backend(NamedTuple):
    """Where packets are sent. With ``hairpin`` they are masqueraded if it is its own client."""

    address: bytes
    port: int
    hairpin: bool = False

    @property
    def place(self) -> Place:
        """Its address and port, which identify it."""
        return self.address, self.port


Place = tuple[bytes, int]
"""Address and port."""


class Policy(NamedTuple):
    """What happens to one class of clients: slots ``first .. first + size - 1`` of the backends.

    With ``size`` 0, or where the place in the table has no slot, there is no backend: with
    ``reject`` clients get an error, else packets are dropped. ``table``: the number of places in
    the table of these slots; 0: none, any slot may be chosen. ``trials``: the number of backends on
    trial (:mod:`bpfsvc.services.scheduling.quarantine`), in the slots behind these. ``spills``:
    connections may overflow to all endpoints that serve, in the slots right before these
    (:class:`bpfsvc.services.scheduling.extra.Spill`).
    """

    first: int
    size: int
    masquerade: bool
    reject: bool
    table: int = 0
    trials: int = 0
    spills: bool = False


class Policies(NamedTuple):
    """A policy for each class of clients: pods by the local detector, this node, all others.

    * ``affinity_seconds``: how long a client stays with its backend; 0: no longer than the
      connection.
    * ``restricted``: only clients within the source ranges of the service port are served.
    * ``schedule``: what leads to a slot, or to a place of the table
      (:class:`bpfsvc.services.scheduling.schedulers.Schedule`).
    * ``echo``: echo requests (ping) to the address of the frontend are answered.
    * ``removal``: what becomes of connections to an endpoint that leaves
      (:class:`bpfsvc.services.scheduling.removal.OnRemoval`).
    * ``watched``: how attempts to connect end is noted
      (:mod:`bpfsvc.services.scheduling.quarantine`).
    * ``counted``: the connections of each backend are counted, whatever the schedule.
    * ``limit``: how many connections a backend may have on this node; 0: any number.
    """

    pod: Policy
    node: Policy
    other: Policy
    affinity_seconds: int = 0
    restricted: bool = False
    schedule: int = 0
    echo: bool = False
    removal: int = 0
    watched: bool = False
    counted: bool = False
    limit: int = 0

    @property
    def by_class(self) -> tuple[Policy, Policy, Policy]:
        """The policies alone, in the order of :data:`CLIENTS`."""
        return self[:3]


CLIENTS = ("pod", "node", "other")
"""The classes of clients."""


Extra = Mapping[str, tuple[tuple[Any, ...], ...]]
"""Map -> the entries that a service port has there, sorted, each without service id and generation.

For maps that no more needs to be known of (:func:`bpfsvc.services.plans.registry.extra_map`).
"""

NO_EXTRA: Extra = {}


class PortEntries(NamedTuple):
    """What one service port becomes. ``number`` is ``spec.ports[].port``."""

    number: int
    backends: tuple[Backend, ...]
    frontends: dict[Frontend, Policies]
    extra: Extra = NO_EXTRA

    @property
    def ranges(self) -> tuple[Network, ...]:
        """The networks whose clients may use restricted frontends, sorted."""
        return ranges_of(self.extra)


def range_entries(ranges: tuple[Network, ...]) -> Extra:
    """Return the entries of the map of source ranges."""
    return {"source_ranges": tuple((network,) for network in ranges)} if ranges else NO_EXTRA


def ranges_of(extra: Extra) -> tuple[Network, ...]:
    """Return the source ranges among some entries."""
    return tuple(network for (network,) in extra.get("source_ranges", ()))


ServiceEntries = dict[ServicePort, PortEntries]
