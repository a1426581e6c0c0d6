"""What is to be balanced, where, and what is run for it: the words all layouts share."""

from __future__ import annotations

import base64
import hashlib
import ipaddress
from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache
from typing import Literal, NamedTuple

from bpfsvc.errors import UsageError

Protocol = Literal["tcp", "udp"]

SERVICES = ipaddress.IPv4Network("10.96.0.0/12")
"""The range of cluster IPs, kubeadm's default."""

MASQUERADE_MARK = "0x4000"
"""kube-proxy's default: bit 14."""


class Backend(NamedTuple):
    """Where an endpoint listens: an IPv4 address as text, and a port."""

    address: str
    port: int

    def __str__(self) -> str:
        """Give ``address:port``."""
        return f"{self.address}:{self.port}"


@dataclass(frozen=True, slots=True)
class Balanced:
    """One port of a Service that spreads over all its endpoints, wherever the client is.

    ``name`` is ``namespace/name`` or, where the port has a name, ``namespace/name:port``, and
    unique with the protocol; ``address`` is the cluster IP; ``node_port`` is 0 for none.
    ``backends`` are pairs of address and port; there is at least one.
    """

    name: str
    address: str
    port: int
    protocol: Protocol = "tcp"
    node_port: int = 0
    backends: tuple[tuple[str, int], ...] = ()

    def __post_init__(self) -> None:
        if not self.backends:
            raise UsageError(f"{self.name} is to be balanced over no backends")

    @property
    def key(self) -> tuple[str, Protocol]:
        """What tells it from all others."""
        return self.name, self.protocol

    @property
    def endpoints(self) -> tuple[Backend, ...]:
        """The backends in the order in which kube-proxy keeps them: by their text."""
        return tuple(sorted((Backend(*each) for each in self.backends), key=str))


class Site(NamedTuple):
    """What the rules of a node say about it.

    ``address``: the node's; ``own``: the range of the node's pods; ``pods``: of all pods, from
    which traffic to a cluster IP is not masqueraded; ``services``: of cluster IPs. ``counted``:
    whether rules may refer to ``counters``.
    """

    address: str
    own: ipaddress.IPv4Network
    pods: ipaddress.IPv4Network
    services: ipaddress.IPv4Network = SERVICES
    counted: bool = False

    def holds(self, backend: Backend) -> bool:
        """Whether an endpoint is on this node."""
        return backend.address == self.address or ipaddress.IPv4Address(backend.address) in self.own


class Step(NamedTuple):
    """One run of a tool: its words, and what it reads."""

    command: tuple[str, ...]
    text: str


def text(lines: Iterable[str]) -> str:
    """Join lines as tools read them."""
    return "".join(f"{line}\n" for line in lines)


@lru_cache(1 << 18)  # the time of a change must not be that of names known long since
def digest(words: str, length: int) -> str:
    """Give the start of a hash as kube-proxy puts it into names: sha256, in base32."""
    return base64.b32encode(hashlib.sha256(words.encode()).digest()).decode()[:length]
