"""What a Service becomes: flat values, one per row the kernel will hold.

Everything Kubernetes knows (types, policies, topology) is decided before these values are made,
and nothing below them knows what a NodePort is. Addresses are packed (see :mod:`bpfsvc.address`),
ports are plain numbers in host order, protocols are IPPROTO numbers.
"""

from __future__ import annotations

import socket
from typing import NamedTuple

PROTOCOLS = {"TCP": socket.IPPROTO_TCP, "UDP": socket.IPPROTO_UDP, "SCTP": socket.IPPROTO_SCTP}
"""Protocol names as the API writes them, and their IPPROTO numbers."""

PROTOCOL_NAMES = {int(number): name for name, number in PROTOCOLS.items()}


class ServicePort(NamedTuple):
    """Identity of one entry of ``spec.ports`` in one address family."""

    namespace: str
    name: str
    port_name: str
    protocol: int
    family: int


class Frontend(NamedTuple):
    """Where clients send to. The wildcard addresses stand for the node's own (NodePort)."""

    address: bytes
    port: int
    protocol: int

    @classmethod
    def rest(cls, address: bytes) -> Frontend:
        """Stand for all of an address that no other frontend takes: any port, any protocol."""
        return cls(address, 0, 0)


class Backend(NamedTuple):
    """Where packets go. With ``hairpin`` it is masqueraded when it is its own client."""

    address: bytes
    port: int
    hairpin: bool = False

    @property
    def place(self) -> Place:
        """Its address and port, by which it is the same backend whatever else changes."""
        return self.address, self.port


Place = tuple[bytes, int]
"""Address and port."""


class Network(NamedTuple):
    """The addresses that share the first ``bits`` of 128, IPv4 in v4-mapped form."""

    address: bytes
    bits: int


class Policy(NamedTuple):
    """What happens to one class of clients: slots ``first .. first + size - 1`` of the backends.

    With ``size`` 0 nobody is home: ``reject`` tells the client, otherwise packets are dropped.
    """

    first: int
    size: int
    masquerade: bool
    reject: bool


class Policies(NamedTuple):
    """A policy for each class of clients: pods by the detector, this node itself, all others.

    * ``affinity_seconds``: how long a client stays with its backend; 0: no longer than the
      connection.
    * ``restricted``: only clients out of the ranges of the service port are served.
    """

    pod: Policy
    node: Policy
    other: Policy
    affinity_seconds: int = 0
    restricted: bool = False

    @property
    def by_class(self) -> tuple[Policy, Policy, Policy]:
        """The policies alone, in the order of :data:`CLIENTS`."""
        return self[:3]


CLIENTS = ("pod", "node", "other")
"""The classes of clients."""


class PortRows(NamedTuple):
    """All rows of one service port.

    ``number`` is ``spec.ports[].port``; ``ranges``, sorted, are where the clients of restricted
    frontends must stand.
    """

    number: int
    backends: tuple[Backend, ...]
    frontends: dict[Frontend, Policies]
    ranges: tuple[Network, ...] = ()


ServiceRows = dict[ServicePort, PortRows]
