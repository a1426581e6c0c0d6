"""A connection as netfilter tracks it, and as people read it."""

from __future__ import annotations

from typing import NamedTuple

from bpfsvc.base.address import endpoint_text
from bpfsvc.base.protocols import PROTOCOL_NAMES
from bpfsvc.migration.decisions import Treatment
from bpfsvc.services.entries import Place


class Flow(NamedTuple):
    """A new connection. Addresses are packed, ports in host order, ``protocol`` is an IPPROTO.

    * ``client``: the address and port that opened it; ``asked``: those that the client sent to.
    * ``backend``: the address and port that answer; ``asked`` itself without a translation.
    * ``seen``: the source address that the backend sees.
    """

    protocol: int
    client: Place
    asked: Place
    backend: Place
    seen: bytes

    @property
    def is_translated(self) -> bool:
        """True if its destination was translated."""
        return self.backend != self.asked

    @property
    def treatment(self) -> Treatment:
        """What kube-proxy did with the connection."""
        if not self.is_translated:
            return Treatment("pass")
        action = "forward" if self.seen == self.client[0] else "masquerade"
        return Treatment(action, frozenset({self.backend}))

    def __str__(self) -> str:
        name = PROTOCOL_NAMES.get(self.protocol, str(self.protocol))
        return f"{name} {endpoint_text(*self.client)} -> {endpoint_text(*self.asked)}"
