"""A connection as netfilter tracks it, and as people read it."""

from __future__ import annotations

from typing import NamedTuple

from bpfsvc.base.address import endpoint_text
from bpfsvc.base.protocols import PROTOCOL_NAMES
from bpfsvc.services.entries import Place


class Flow(NamedTuple):
    """A new connection. Addresses are packed, ports in host order, ``protocol`` is an IPPROTO.

    * ``client``: who opened it, ``asked``: the address and port that the client sent to.
    * ``backend``: who answers; ``asked`` itself if the destination was not translated.
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
    def is_masqueraded(self) -> bool:
        """True if the backend sees another address than the client's."""
        return self.seen != self.client[0]

    def __str__(self) -> str:
        name = PROTOCOL_NAMES.get(self.protocol, str(self.protocol))
        return f"{name} {endpoint_text(*self.client)} -> {endpoint_text(*self.asked)}"
