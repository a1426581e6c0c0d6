"""The addresses of the cluster, the same in each, as each has its own namespaces.

::

    api .1 ─────┐         ┌── n1 .11   zone-a
                ├─ switch ┼── n2 .12   zone-b
    outside .200┘         └── n3 .13   zone-c

The nodes' default route leads to ``api``, which forwards nothing.
"""

from __future__ import annotations

from dataclasses import dataclass
from ipaddress import IPv4Address, IPv6Address, ip_address, ip_network

LAN_LENGTHS = {4: 24, 6: 64}
POD_CIDRS = ("10.244.0.0/16", "fd00:10:244::/56")
SERVICE_CIDRS = ("10.96.0.0/16", "fd00:10:96::/112")
API_SERVICE = ("10.96.0.1", "fd00:10:96::1")
DNS_SERVICE = "10.96.0.10"
API_PORT = 6443

BALANCER_CIDRS = {4: ip_network("203.0.113.0/24"), 6: ip_network("2001:db8:203::/120")}
"""Addresses of Services of type LoadBalancer."""

CLIENTS = {4: ip_address("198.18.0.1"), 6: ip_address("2001:db8:18::1")}
"""A client's addresses outside of the nodes' network, on ``api``."""


@dataclass(frozen=True, slots=True)
class Host:
    """A machine on the switch."""

    name: str
    v4: IPv4Address
    v6: IPv6Address
    zone: str = ""

    @property
    def addresses(self) -> tuple[IPv4Address, IPv6Address]:
        """Both addresses, IPv4 first."""
        return self.v4, self.v6


def _host(name: str, number: int, zone: str = "") -> Host:
    last = IPv6Address(f"fd00:100::{number}")
    return Host(name, IPv4Address(f"192.168.100.{number}"), last, zone)


API = _host("api", 1)
OUTSIDE = _host("outside", 200)
NODES = (_host("n1", 11, "zone-a"), _host("n2", 12, "zone-b"), _host("n3", 13, "zone-c"))
