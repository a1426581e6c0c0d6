"""The decisions of kube-proxy and of bpfsvc about a frontend's clients, and how they differ. Pure.

verify compares all decisions of both proxies; shadow compares each connection of kube-proxy with
bpfsvc's decision. Both compare :class:`Treatment` values with :func:`differing`.

Frontends, classes of clients, addresses and ports are values of :mod:`bpfsvc.services.entries`.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Iterable, Iterator, Mapping
from typing import NamedTuple

from bpfsvc.base.address import ANY_NODE_ADDRESS_V4, ANY_NODE_ADDRESS_V6, pack_network
from bpfsvc.base.networks import Network, bits_of
from bpfsvc.services.entries import CLIENTS, Frontend, Place, Policy

ANY_NODE_ADDRESS = {4: ANY_NODE_ADDRESS_V4, 6: ANY_NODE_ADDRESS_V6}
"""The address of a frontend that stands for every address of the node that accepts NodePorts."""


class Treatment(NamedTuple):
    """What happens to one class of clients at a frontend, or to one connection.

    ``action``: ``forward``, ``masquerade``, ``reject``, ``drop``, or ``pass`` where the destination
    stays as it is. ``backends``: the eligible backends; of a connection the chosen one.
    """

    action: str
    backends: frozenset[Place] = frozenset()


class Decision(NamedTuple):
    """What happens at one frontend.

    * ``service``: ``namespace/name``, followed by the port's name or number if it is known; or "".
    * ``clients``: a treatment for each class of :data:`~bpfsvc.services.entries.CLIENTS`.
    * ``affinity``: seconds, 0 without.
    * ``sources``: the networks of the clients that are served; none if all clients are.
    """

    service: str
    clients: Mapping[str, Treatment]
    affinity: int = 0
    sources: tuple[Network, ...] = ()

    @property
    def actions(self) -> tuple[str, ...]:
        """The actions of all classes of clients, each once, sorted."""
        return tuple(sorted({treatment.action for treatment in self.clients.values()}))


NO_DECISION = Decision("", dict.fromkeys(CLIENTS, Treatment("pass")))
"""What happens where a proxy has no frontend."""


class Decisions(NamedTuple):
    """All decisions of one proxy.

    ``nodeports``: the addresses that accept NodePorts, None where any address of the node may.
    """

    frontends: Mapping[Frontend, Decision]
    nodeports: frozenset[bytes] | None = None


def action_of(policy: Policy, *, hairpin: bool = False) -> str:
    """Return the action of a policy of bpfsvc. ``hairpin``: the client is its own backend."""
    if not policy.size:
        return "reject" if policy.reject else "drop"
    return "masquerade" if policy.masquerade or hairpin else "forward"


def differing(
    kube_proxy: Treatment, bpfsvc: Treatment, *, one_connection: bool = False
) -> Iterator[str]:
    """Yield what differs: ``backends``, ``action``.

    ``one_connection``: kube-proxy's treatment is of one connection, and its backend has to be among
    bpfsvc's. Backends differ only where both proxies have some.
    """
    if kube_proxy.backends and bpfsvc.backends:
        alike = (
            kube_proxy.backends <= bpfsvc.backends
            if one_connection
            else kube_proxy.backends == bpfsvc.backends
        )
        if not alike:
            yield "backends"
    if kube_proxy.action != bpfsvc.action:
        yield "action"


def merged_networks(texts: Iterable[str]) -> tuple[Network, ...]:
    """Return networks in one order, IPv4 first, without the parts of other networks."""
    networks = [ipaddress.ip_network(text, strict=False) for text in texts]
    merged: list[Network] = []
    for version in (4, 6):
        of_family = [network for network in networks if network.version == version]
        for network in ipaddress.collapse_addresses(of_family):  # type: ignore[type-var]
            address, mask = pack_network(str(network))
            merged.append(Network(address, bits_of(mask)))
    return tuple(merged)
