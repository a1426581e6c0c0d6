"""Which entries of the connection table are over, by the time since their last packet."""

from __future__ import annotations

import time
from socket import IPPROTO_TCP, IPPROTO_UDP
from typing import NamedTuple

from bpfsvc.base.clock import NS_PER_SECOND
from bpfsvc.config.config import Lifetimes
from bpfsvc.datapath.maps.layout import Layout
from bpfsvc.datapath.syscall import Block

_ALONE_SECONDS = 15
"""How much longer an entry for replies is kept. It is removed with its partner; an older one has no
partner."""

_STATE = (
    *("seen", "reply", "established", "fin_sent", "fin_received"),
    *("reset", "held", "outside", "client_first"),
)
"""Fields of an entry, in their order."""


class Expired(NamedTuple):
    """Keys of entries that seem to be over; numbers of half-open and of untranslated pairs."""

    keys: list[bytes]
    half_open: int
    untranslated: int


class Expiry:
    """Reads the states of entries as the layout says."""

    def __init__(self, layout: Layout, lifetimes: Lifetimes) -> None:
        connections, constant = layout.maps["connections"], layout.constant
        self._protocol = connections.key.pick("protocol")
        self._state = connections.value.pick(*_STATE)
        self._hook = connections.key.pick("hook")
        self._untranslated = constant("OUTSIDE_UNTRANSLATED")
        self._egress = constant("HOOK_EGRESS")
        self._time_wait = constant("TIME_WAIT_SECONDS")
        self._early_seconds = constant("LINGER_SECONDS"), constant("UNANSWERED_SECONDS")
        self._lifetimes = lifetimes

    def of_block(self, block: Block, *, crowded: bool, early_ports: bool) -> Expired:
        """Return the keys of entries that are over in a block, and numbers of pairs.

        * ``crowded``: closed and half-open connections are over early.
        * ``early_ports``: ports of closed connections are not kept until peers forget them.
        """
        now = time.monotonic_ns()
        closed, half_open = self._early(crowded)
        keep = self._lifetimes
        shortest = min(closed, half_open, keep.udp, keep.sctp, keep.tcp_half_closed)
        young = now - shortest * NS_PER_SECOND
        keys: list[bytes] = []
        held_pairs = untranslated = 0
        # Some hundred thousand times a sweep: what most entries need is done in place.
        for at, state in enumerate(self._state.iter_unpack(block.values)):
            seen, reply, established, sent, received, reset, held, outside, client_first = state
            if held and not reply:
                held_pairs += 1
            if outside == self._untranslated and not reply:
                untranslated += 1
            if seen > young:
                continue
            if reset or (sent and received):
                seconds = closed
            elif not established:
                seconds = half_open
            else:
                seconds = self._established_seconds(block.key(at), sent or received)
            if now - seen < (seconds + _ALONE_SECONDS * reply) * NS_PER_SECOND:
                continue
            key = block.key(at)
            if (
                not (sent and received)
                or early_ports
                or reset
                or client_first
                or self._forgotten(key, reply, now - seen)
            ):
                keys.append(key)
        return Expired(keys, held_pairs, untranslated)

    def _forgotten(self, key: bytes, reply: bool, idle: int) -> bool:
        """True unless this is the port of a masquerade, which its backend may remember."""
        around_wire = (self._hook.unpack(key)[0] == self._egress) != bool(reply)
        return not around_wire or idle >= (self._time_wait + _ALONE_SECONDS * reply) * NS_PER_SECOND

    def _early(self, crowded: bool) -> tuple[int, int]:
        """Return the seconds for which closed and half-open connections are kept."""
        if crowded:
            return self._early_seconds
        return self._lifetimes.tcp_closed, self._lifetimes.half_open

    def _established_seconds(self, key: bytes, closing: bool) -> int:
        protocol = self._protocol.unpack(key)[0]
        if protocol == IPPROTO_UDP:
            return self._lifetimes.udp
        if protocol != IPPROTO_TCP:
            return self._lifetimes.sctp
        return self._lifetimes.tcp_half_closed if closing else self._lifetimes.tcp_established
