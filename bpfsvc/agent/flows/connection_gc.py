"""The connection GC: removes connections that are over, and those to UDP backends that are gone.

The tables are read here, and the kernel decides (``bpf/path/agent/gc.h``): between the reading of
an entry and its deletion a packet may have revived it, and only the kernel can look again.
"""

from __future__ import annotations

import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator
from socket import IPPROTO_TCP, IPPROTO_UDP

from bpfsvc.agent.flows.load_recount import LoadRecount
from bpfsvc.base.address import family
from bpfsvc.base.clock import NS_PER_SECOND
from bpfsvc.base.errors import BpfsvcError
from bpfsvc.config.config import Lifetimes
from bpfsvc.datapath.maps.gc_program import GcProgram
from bpfsvc.datapath.maps.pins import Pinned
from bpfsvc.datapath.syscall import Block
from bpfsvc.services.rules.stale_udp import StaleUdp

_PAUSE = 0.002
"""Seconds between two batches of reading: a sweep must not delay a change of Services."""

_CROWDED = 0.75
"""Above this share of the table, closed and half-open connections are collected early."""

_ROOMY = 0.5
"""Up to this share of the table, ports of closed connections are kept until peers forget them."""

_ALONE_SECONDS = 15
"""How much longer an entry of replies is kept. It is removed with its partner; one that is older
than that has none."""

_COUNT_SLACK = 256
"""A difference of one in so many entries of the table is not worth correcting."""


class ConnectionGc:
    """Sweeps the connection tables of one node, in a thread of its own."""

    def __init__(self, pinned: Pinned, lifetimes: Lifetimes, seconds: float) -> None:
        self._connections = pinned.map("connections")
        self._new_connections = pinned.map("new_connections")
        self._gc = GcProgram(pinned)
        self._loads = LoadRecount(pinned)
        layout = pinned.layout.maps["connections"]
        self._protocol = layout.key.pick("protocol")
        self._origin = layout.key.pick("source", "source_port", "protocol")
        self._state = layout.value.pick(
            "seen",
            "reply",
            "established",
            "fin_sent",
            "fin_received",
            "reset",
            "held",
            "outside",
            "client_first",
        )
        self._becomes = layout.value.pick("after.source", "after.source_port", "reply")
        constant = pinned.layout.constant
        self._pair_counts = pinned.map("half_open"), pinned.map("untranslated")
        self._untranslated = constant("OUTSIDE_UNTRANSLATED")
        self._hook = layout.key.pick("hook")
        self._egress = constant("HOOK_EGRESS")
        self._time_wait = constant("TIME_WAIT_SECONDS")
        self._early_seconds = constant("LINGER_SECONDS"), constant("UNANSWERED_SECONDS")
        self._lifetimes = lifetimes
        self._seconds = seconds
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="connection GC", daemon=True)
        self._log: Callable[[str], None] = print
        self._report_nearly_full: Callable[[str], None] = print
        self.entries = 0
        """Entries found by the last sweep."""

    def start(self, log: Callable[[str], None], nearly_full: Callable[[str], None]) -> None:
        """Sweep from now on; call ``nearly_full(text)`` when the table fills up."""
        self._log = log
        self._report_nearly_full = nearly_full
        self._thread.start()

    def stop(self) -> None:
        """End the thread and wait for it."""
        self._stop.set()
        if self._thread.ident is not None:
            self._thread.join()

    def sweep(self) -> int:
        """Read the table once; return how many entries were over and are removed."""
        removed = entries = half_open = untranslated = 0
        room = self._connections.max_entries
        crowded, early_ports = self.entries > _CROWDED * room, self.entries > _ROOMY * room
        recount = self._loads.begin()
        if recount:
            for block in self._new_connections.blocks():
                recount.add_new(block)
        for block in self._connections.blocks():
            entries += block.size
            if recount:
                recount.add(block)
            over, held, unchanged = self._over(block, crowded, early_ports)
            half_open += held
            untranslated += unchanged
            removed += self._gc.remove(over, crowded=crowded, early_ports=early_ports)
            if self._stop.wait(_PAUSE):
                return removed
        self._correct_counts(half_open, untranslated)
        if recount:
            recount.end()
        self._warn_if_crowded(entries)
        self.entries = entries
        return removed

    def _correct_counts(self, *counts: int) -> None:
        """Correct the programs' own counts of half-open and of untranslated connections.

        They count without locks, and may count one pair twice. Small differences are due to the
        time that the counting took.
        """
        for of_kind, counted in zip(self._pair_counts, counts, strict=True):
            kept = int.from_bytes(of_kind.lookup(bytes(4)) or b"", sys.byteorder, signed=True)
            if abs(kept - counted) > self._connections.max_entries // _COUNT_SLACK:
                of_kind.update(bytes(4), counted.to_bytes(of_kind.value_size, sys.byteorder))

    def _warn_if_crowded(self, entries: int) -> None:
        """Warn once when the table fills up, while there is still time."""
        room = self._connections.max_entries
        if self.entries <= _CROWDED * room < entries:
            self._report_nearly_full(
                f"map connections holds {entries} of {room} entries;"
                " when it is full, new connections fail (enlarge it with --max-connections)"
            )

    def remove_stale_udp(self, stale: StaleUdp) -> dict[int, int]:
        """Remove UDP connections to endpoints that do not serve; return how many, by family.

        Established TCP stays with its backend; a UDP client would never notice.
        """
        removed: dict[int, int] = {}
        ports = frozenset(socket.htons(port) for port in stale.ports)
        # A flow moves from the one to the other, and never back.
        for table in (self._new_connections, self._connections):
            for block in table.blocks():
                found: dict[int, list[bytes]] = {}
                for key in self._stale_keys(block, stale, ports):
                    found.setdefault(family(self._origin.unpack(key)[0]), []).append(key)
                for of_family, keys in found.items():
                    number = self.remove(keys)
                    removed[of_family] = removed.get(of_family, 0) + number
        return removed

    def remove(self, keys: list[bytes]) -> int:
        """Remove connections by their keys, whether they are over or not; return how many."""
        return self._gc.remove(keys, force=True)

    def _stale_keys(self, block: Block, stale: StaleUdp, ports: frozenset[int]) -> Iterator[bytes]:
        """Yield the keys of entries that rewrite a stale backend's replies to its frontend.

        ``ports``: those of the frontends, in network order.
        """
        for at, (frontend, number, reply) in enumerate(self._becomes.iter_unpack(block.values)):
            if not reply or number not in ports:
                continue
            key = block.key(at)
            address, port, protocol = self._origin.unpack(key)
            if protocol == IPPROTO_UDP and stale.is_stale(
                (frontend, socket.ntohs(number)), (address, socket.ntohs(port))
            ):
                yield key

    def _run(self) -> None:
        while not self._stop.wait(self._seconds):
            try:
                self.sweep()
            except (BpfsvcError, OSError) as error:
                self._log(f"the connection GC could not sweep: {error}")

    def _over(self, block: Block, crowded: bool, early_ports: bool) -> tuple[list[bytes], int, int]:
        """Return the keys of entries that seem to be over, and two numbers of pairs.

        These are the pairs that are half open, and those that are not translated.
        """
        now = time.monotonic_ns()
        closed, half_open = self._early(crowded)
        keep = self._lifetimes
        shortest = min(closed, half_open, keep.udp, keep.sctp, keep.tcp_half_closed)
        young = now - shortest * NS_PER_SECOND
        found, held_pairs, untranslated = [], 0, 0
        # Some hundred thousand times a sweep: what most entries need is done in place.
        for at, (
            seen,
            reply,
            established,
            sent,
            received,
            reset,
            held,
            outside,
            client_first,
        ) in enumerate(self._state.iter_unpack(block.values)):
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
                found.append(key)
        return found, held_pairs, untranslated

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
