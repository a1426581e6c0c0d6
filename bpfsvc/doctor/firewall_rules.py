"""Rules that name the destination of a packet before it is translated, and whom they concern. Pure.

With kube-proxy a packet to a Service keeps its destination until netfilter's DNAT (nat PREROUTING,
priority -100), so a firewall may match NodePorts and addresses of load balancers before that.
bpfsvc translates at tc ingress, which the kernel runs before every hook of netfilter, also before
netdev ingress (net/core/dev.c, __netif_receive_skb_core): such a rule sees the endpoint instead. So
does conntrack, whose original destination is then the endpoint, too.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Iterable, Iterator
from typing import NamedTuple

Network = ipaddress.IPv4Network | ipaddress.IPv6Network


class Place(NamedTuple):
    """A frontend of a Service.

    * ``addresses``: as text; those of the node for a NodePort. ``protocol``: ``TCP`` ...
    * ``backends``: address and port of each; none if it has none.
    """

    service: str
    frontend: str
    addresses: tuple[str, ...]
    port: int
    protocol: str
    backends: tuple[tuple[str, int], ...] = ()


class Match(NamedTuple):
    """One condition on the destination; what is None or empty may be anything.

    * ``ports``: ranges, both ends included.
    * ``original``: it looks at the destination that conntrack saw first.
    """

    networks: tuple[Network, ...] | None = None
    ports: tuple[tuple[int, int], ...] | None = None
    protocols: frozenset[str] = frozenset()
    original: bool = False
    negated: bool = False

    @property
    def names_destination(self) -> bool:
        """True if it holds for some destinations only, which it names."""
        return (self.networks is not None or self.ports is not None) and not self.negated

    def covers(self, address: str, port: int, protocol: str) -> bool:
        """True if it holds for a destination."""
        holds = (
            (self.networks is None or _within(address, self.networks))
            and (self.ports is None or any(one <= port <= last for one, last in self.ports))
            and (not self.protocols or protocol in self.protocols)
        )
        return holds != self.negated


class PacketRule(NamedTuple):
    """A rule of another program, with the conditions of the rules that lead to its chain.

    ``where``: its table and hook; ``text``: as its tool prints it; ``family``: 4, 6, or 0 for both.
    """

    where: str
    text: str
    family: int
    matches: tuple[Match, ...]

    @property
    def names_destination(self) -> bool:
        """True if it is for some destinations only."""
        return any(each.names_destination for each in self.matches)

    def loses(self, place: Place) -> bool:
        """True if it applied to packets to a frontend, and does not to those to its endpoints."""
        if not any(self._covers(each, place.port, place.protocol) for each in place.addresses):
            return False
        return not place.backends or not all(
            self._covers(address, port, place.protocol) for address, port in place.backends
        )

    def _covers(self, address: str, port: int, protocol: str) -> bool:
        if self.family not in (0, ipaddress.ip_address(address).version):
            return False
        return all(each.covers(address, port, protocol) for each in self.matches)


def losing(rules: Iterable[PacketRule], places: Iterable[Place]) -> Iterator[tuple[str, Place]]:
    """Yield (where, frontend) for each frontend that a rule of that place no longer applies to."""
    every = list(places)
    by_port: dict[int, list[Place]] = {}
    for place in every:
        by_port.setdefault(place.port, []).append(place)
    seen: set[tuple[str, str]] = set()
    for rule in rules:
        for place in _candidates(rule, every, by_port):
            if (rule.where, place.frontend) not in seen and rule.loses(place):
                seen.add((rule.where, place.frontend))
                yield rule.where, place


def _candidates(
    rule: PacketRule, every: list[Place], by_port: dict[int, list[Place]]
) -> Iterable[Place]:
    """Return the frontends that a rule may apply to: those of its ports, if it names some."""
    for match in rule.matches:
        if match.ports is not None and not match.negated:
            ports = (
                port
                for port in by_port
                if any(one <= port <= last for one, last in match.ports or ())
            )
            return [place for port in ports for place in by_port[port]]
    return every


def _within(address: str, networks: Iterable[Network]) -> bool:
    one = ipaddress.ip_address(address)
    return any(one in network for network in networks if network.version == one.version)


def network(text: str) -> Network:
    """Return a network, or an address as one."""
    return ipaddress.ip_network(text, strict=False)
