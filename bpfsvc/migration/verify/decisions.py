"""What kube-proxy or bpfsvc does with the clients of a frontend: the values that are compared."""

from __future__ import annotations

import ipaddress
from collections.abc import Iterable, Mapping
from typing import NamedTuple

from bpfsvc.base.address import endpoint_text, family, pack
from bpfsvc.services.entries import NODEPORT_TEXTS

NODE = {family(address): text for address, text in NODEPORT_TEXTS.items()}
"""Stands for every address of the node that accepts NodePorts, by family."""


class Frontend(NamedTuple):
    """Where clients send to. ``protocol`` is ``TCP``, ``UDP`` or ``SCTP``."""

    address: str
    port: int
    protocol: str

    def __str__(self) -> str:
        """Return it as ``bpfsvc maps dump frontends`` shows it."""
        if self.address in NODE.values():
            return f"{self.address}:{self.port}/{self.protocol}"
        return f"{endpoint_text(pack(self.address), self.port)}/{self.protocol}"


class Treatment(NamedTuple):
    """What happens to one class of clients.

    ``action``: ``forward``, ``masquerade``, ``reject``, ``drop``, or ``pass`` where no rule
    applies. ``backends``: the eligible ones as ``10.244.1.11:8080``, sorted.
    """

    action: str
    backends: tuple[str, ...] = ()


class Decision(NamedTuple):
    """What happens at one frontend.

    * ``service``: ``namespace/name``, followed by the port's name or number if it is known; or "".
    * ``clients``: a treatment for each class.
    * ``affinity``: seconds, 0 without.
    * ``sources``: the networks whose clients are served; none if all are.
    """

    service: str
    clients: Mapping[str, Treatment]
    affinity: int = 0
    sources: tuple[str, ...] = ()


class Decisions(NamedTuple):
    """All decisions of one proxy.

    ``nodeports``: the addresses that accept NodePorts, None where any address of the node may.
    """

    frontends: Mapping[str, Decision]
    nodeports: frozenset[str] | None = None


def merged_networks(texts: Iterable[str]) -> tuple[str, ...]:
    """Return networks in one order, without those that are part of another."""
    networks = [ipaddress.ip_network(text, strict=False) for text in texts]
    found: list[str] = []
    for version in (4, 6):
        own = [each for each in networks if each.version == version]
        found += map(str, ipaddress.collapse_addresses(own))  # type: ignore[type-var]
    return tuple(found)
