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


class Backend(NamedTuple):
    """Where packets go."""

    address: bytes
    port: int


class Policy(NamedTuple):
    """What happens to one class of clients: slots ``first .. first + size - 1`` of the backends.

    With ``size`` 0 nobody is home: ``reject`` tells the client, otherwise packets are dropped.
    """

    first: int
    size: int
    masquerade: bool
    reject: bool


class Policies(NamedTuple):
    """A policy for each class of clients: pods by the detector, this node itself, all others."""

    pod: Policy
    node: Policy
    other: Policy


class PortRows(NamedTuple):
    """All rows of one service port. ``number`` is ``spec.ports[].port``."""

    number: int
    backends: tuple[Backend, ...]
    frontends: dict[Frontend, Policies]


ServiceRows = dict[ServicePort, PortRows]
