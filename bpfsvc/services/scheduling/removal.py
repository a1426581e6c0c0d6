"""What becomes of TCP connections to an endpoint that leaves its Service, as annotations say it.

``bpfsvc.io/on-removal``: ``keep`` (kube-proxy's way), ``drain`` or ``reset``; with ``drain``,
``bpfsvc.io/drain-seconds`` says for how long they stay. An endpoint has left when no slice of the
Service has its address and port any more: one that is not ready, or terminates, or has weight 0, is
still there.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import IntEnum
from typing import NamedTuple

from bpfsvc.services.entries import Place, ServicePort
from bpfsvc.services.scheduling.numbers import parse_number, shortened

DRAIN_SECONDS = 30
"""How long connections stay if no annotation says it."""

MOST_SECONDS = 86400


class OnRemoval(IntEnum):
    """The words of the annotation: ``enum removal`` of bpf/maps/frontends.h."""

    KEEP = 0
    DRAIN = 1
    RESET = 2


class Removal(NamedTuple):
    """What a Service says: ``drain_seconds`` counts with ``DRAIN`` only."""

    kind: OnRemoval = OnRemoval.KEEP
    drain_seconds: int = DRAIN_SECONDS

    @property
    def seconds(self) -> int:
        """For how long connections stay; only where they are not kept."""
        return self.drain_seconds if self.kind == OnRemoval.DRAIN else 0


USUAL_REMOVAL = Removal()


class Members(NamedTuple):
    """The endpoints of a Service's TCP ports, used or not; connections to others end.

    ``seconds``: how long after an endpoint has left.
    """

    seconds: int
    endpoints: Mapping[ServicePort, frozenset[Place]]


def parse_on_removal(text: str) -> OnRemoval:
    """Read the annotation ``on-removal``. Raises ``ValueError`` with one line."""
    word = text.strip()
    for kind in OnRemoval:
        if kind.name.lower() == word:
            return kind
    raise ValueError(f"{shortened(word)} must be keep, drain or reset")


def parse_seconds(text: str) -> int:
    """Read a number of seconds. Raises ``ValueError`` with one line."""
    return parse_number(text, 1, MOST_SECONDS, "seconds")
