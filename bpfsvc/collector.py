"""Removing connections that are over, and those to UDP backends that are gone.

Reading the tables is done here, deciding in the kernel (``bpf/collect.h``): between the reading of
an entry and its deletion a packet may have revived it, and only the kernel can look again.
"""

from __future__ import annotations

import socket
import struct
import sys
import threading
import time
from collections.abc import Callable, Iterator
from socket import IPPROTO_TCP, IPPROTO_UDP

from bpfsvc.address import family
from bpfsvc.config import Lifetimes
from bpfsvc.datapath import bpf
from bpfsvc.datapath.bpf import Block
from bpfsvc.datapath.pins import Pinned
from bpfsvc.errors import BpfsvcError
from bpfsvc.served import Served

_BATCH = 16
"""COLLECT_FLOWS of the C sources."""

_HEADER = struct.Struct("=14xBBBx")

_PACE = 0.002
"""Seconds between two batches of reading: a sweep must not hold up a change of Services."""

_CROWDED = 0.75
"""Above this share of the table, closed and half-open connections are collected early."""

_LINGER_SECONDS, _UNANSWERED_SECONDS = 2, 5
"""What is early: LINGER_SECONDS and UNANSWERED_SECONDS of the C sources."""

_ALONE_SECONDS = 15
"""By how much an entry of replies outlives its partner, with which it is removed, before it is
thought to have none."""

_NS = 1_000_000_000

_HALF_OPEN_SLACK = 256
"""A difference of one in so many entries of the table is not worth correcting."""


class Collector:
    """Sweeps the connection tables of one node, in a thread of its own."""

    def __init__(self, pinned: Pinned, lifetimes: Lifetimes, seconds: float) -> None:
        self._connections = pinned.map("connections")
        self._new_connections = pinned.map("new_connections")
        self._program = pinned.program("collect")
        layout = pinned.layout.maps["connections"]
        self._protocol = layout.key.pick("protocol")
        self._origin = layout.key.pick("source", "source_port", "protocol")
        self._state = layout.value.pick(
            "seen", "reply", "established", "fin_sent", "fin_received", "reset", "held"
        )
        self._becomes = layout.value.pick("after.source", "after.source_port", "reply")
        self._half_open = pinned.map("half_open")
        self._lifetimes = lifetimes
        self._seconds = seconds
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="collector", daemon=True)
        self._log: Callable[[str], None] = print
        self.rows = 0
        """Entries found by the last sweep."""

    def start(self, log: Callable[[str], None]) -> None:
        """Sweep from now on."""
        self._log = log
        self._thread.start()

    def stop(self) -> None:
        """End the thread and wait for it."""
        self._stop.set()
        if self._thread.ident is not None:
            self._thread.join()

    def sweep(self) -> int:
        """Go through the table once; return how many entries proved to be over."""
        removed = rows = half_open = 0
        crowded = self.rows > _CROWDED * self._connections.max_entries
        for block in self._connections.blocks():
            rows += block.rows
            over, held = self._over(block, crowded)
            half_open += held
            removed += self._offer(over, crowded=crowded)
            if self._stop.wait(_PACE):
                return removed
        self._correct_half_open(half_open)
        self._warn_if_crowded(rows)
        self.rows = rows
        return removed

    def _correct_half_open(self, counted: int) -> None:
        """Put the programs' own count right when it has gone astray.

        They count without locks, and may count one pair twice. Small differences are only the
        time that the counting took.
        """
        noted = int.from_bytes(self._half_open.lookup(bytes(4)) or b"", sys.byteorder, signed=True)
        if abs(noted - counted) > self._connections.max_entries // _HALF_OPEN_SLACK:
            value = counted.to_bytes(self._half_open.value_size, sys.byteorder)
            self._half_open.update(bytes(4), value)

    def _warn_if_crowded(self, rows: int) -> None:
        """Say so once when the table fills up, while there is still time."""
        room = self._connections.max_entries
        if self.rows <= _CROWDED * room < rows:
            self._log(
                f"map connections holds {rows} of {room} entries;"
                " when it is full, new connections fail (enlarge it with --max-connections)"
            )

    def forget_udp(self, served: Served) -> dict[int, int]:
        """Remove the UDP connections that lead astray; return how many there were, by family.

        Established TCP stays with its backend; a UDP client would go on talking to nobody.
        """
        removed: dict[int, int] = {}
        ports = frozenset(socket.htons(port) for port in served.ports)
        # A flow moves from the one to the other, and never back.
        for table in (self._new_connections, self._connections):
            for block in table.blocks():
                found: dict[int, list[bytes]] = {}
                for key in self._astray(block, served, ports):
                    found.setdefault(family(self._origin.unpack(key)[0]), []).append(key)
                for of_family, keys in found.items():
                    offered = self._offer(keys, force=True)
                    removed[of_family] = removed.get(of_family, 0) + offered
        return removed

    def _astray(self, block: Block, served: Served, ports: frozenset[int]) -> Iterator[bytes]:
        """Give the keys of entries that make of a backend's replies those of a frontend.

        ``ports``: those of the frontends, in network order.
        """
        for at, (frontend, number, reply) in enumerate(self._becomes.iter_unpack(block.values)):
            if not reply or number not in ports:
                continue
            key = block.key(at)
            address, port, protocol = self._origin.unpack(key)
            if protocol == IPPROTO_UDP and served.is_astray(
                (frontend, socket.ntohs(number)), (address, socket.ntohs(port))
            ):
                yield key

    def _run(self) -> None:
        while not self._stop.wait(self._seconds):
            try:
                self.sweep()
            except (BpfsvcError, OSError) as error:
                self._log(f"connections could not be collected: {error}")

    def _over(self, block: Block, crowded: bool) -> tuple[list[bytes], int]:
        """Give the keys of entries worth proposing, and how many pairs are held half open."""
        now = time.monotonic_ns()
        closed, half_open = self._early(crowded)
        keep = self._lifetimes
        shortest = min(closed, half_open, keep.udp, keep.sctp, keep.tcp_half_closed)
        young = now - shortest * _NS
        found, held_pairs = [], 0
        # Some hundred thousand times a sweep: what most rows need is done in place.
        for at, (seen, reply, established, sent, received, reset, held) in enumerate(
            self._state.iter_unpack(block.values)
        ):
            if held and not reply:
                held_pairs += 1
            if seen > young:
                continue
            if reset or (sent and received):
                seconds = closed
            elif not established:
                seconds = half_open
            else:
                seconds = self._established_seconds(block.key(at), sent or received)
            if now - seen >= (seconds + _ALONE_SECONDS * reply) * _NS:
                found.append(block.key(at))
        return found, held_pairs

    def _early(self, crowded: bool) -> tuple[int, int]:
        """Give the seconds for which closed and half-open connections are kept."""
        if crowded:
            return _LINGER_SECONDS, _UNANSWERED_SECONDS
        return self._lifetimes.tcp_closed, self._lifetimes.half_open

    def _established_seconds(self, key: bytes, closing: bool) -> int:
        protocol = self._protocol.unpack(key)[0]
        if protocol == IPPROTO_UDP:
            return self._lifetimes.udp
        if protocol != IPPROTO_TCP:
            return self._lifetimes.sctp
        return self._lifetimes.tcp_half_closed if closing else self._lifetimes.tcp_established

    def _offer(self, keys: list[bytes], *, force: bool = False, crowded: bool = False) -> int:
        removed = 0
        for at in range(0, len(keys), _BATCH):
            part = keys[at : at + _BATCH]
            packet = _HEADER.pack(len(part), force, crowded) + b"".join(part)
            removed += bpf.program_test_run(self._program, packet)[0]
        return removed
