"""UDP flows to endpoints that do not serve their frontend, removed from the connection tables."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from socket import IPPROTO_UDP

from bpfsvc.base.address import family
from bpfsvc.datapath.bpf_map import Block
from bpfsvc.datapath.maps.gc_program import GcProgram
from bpfsvc.datapath.maps.pins import Pinned
from bpfsvc.services.rules.stale_udp import StaleUdp


class UdpFlows:
    """The flows of one node; belongs to the agent's thread."""

    def __init__(self, pinned: Pinned) -> None:
        # A flow moves from the first table to the second, and never back.
        self._tables = pinned.map("new_connections"), pinned.map("connections")
        layout = pinned.layout.maps["connections"]
        self._origin = layout.key.pick("source", "source_port", "protocol")
        self._becomes = layout.value.pick("after.source", "after.source_port", "reply")
        self._gc = GcProgram(pinned)

    def remove_stale(self, stale: StaleUdp) -> dict[int, int]:
        """Remove flows to endpoints that do not serve; return how many, by family.

        Established TCP stays with its backend; a UDP client would never notice.
        """
        removed: dict[int, int] = {}
        ports = frozenset(socket.htons(port) for port in stale.ports)
        for table in self._tables:
            for block in table.blocks():
                by_family: dict[int, list[bytes]] = {}
                for key in self._stale_keys(block, stale, ports):
                    by_family.setdefault(family(self._origin.unpack(key)[0]), []).append(key)
                for of_family, keys in by_family.items():
                    number = self._gc.remove(keys, force=True)
                    removed[of_family] = removed.get(of_family, 0) + number
        return removed

    def _stale_keys(self, block: Block, stale: StaleUdp, ports: frozenset[int]) -> Iterator[bytes]:
        """Yield the keys of entries that rewrite a stale backend's replies to its frontend.

        ``ports``: ports of frontends, in network order.
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
