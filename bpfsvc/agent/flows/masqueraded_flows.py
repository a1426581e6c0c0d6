"""Connections that are masqueraded to an address that the node has lost.

No answer can come back to such an address. A UDP client would go on sending; after its flow is
removed, the next datagram begins a flow by an address that the node has. A TCP connection cannot go
on, and its next packet is answered by a reset. Netfilter's MASQUERADE forgets them, too.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator

from bpfsvc.datapath.bpf_map import Block
from bpfsvc.datapath.maps.gc_program import GcProgram
from bpfsvc.datapath.maps.pins import Pinned

_FLOW = ("source", "destination", "source_port", "destination_port", "protocol")


class MasqueradedFlows:
    """The flows of one node; belongs to the agent's thread."""

    def __init__(self, pinned: Pinned) -> None:
        # A flow moves from the first table to the second, and never back.
        self._tables = pinned.map("new_connections"), pinned.map("connections")
        layout = pinned.layout.maps["connections"]
        self._key = layout.key.pick(*_FLOW, "hook")
        self._arrives = layout.key.pick("destination", "hook")
        self._becomes = layout.value.pick(*(f"after.{name}" for name in _FLOW), "reply")
        self._ingress = pinned.layout.constant("HOOK_INGRESS")
        self._egress = pinned.layout.constant("HOOK_EGRESS")
        self._gc = GcProgram(pinned)

    def remove(self, addresses: Collection[bytes]) -> int:
        """Remove the connections masqueraded to these addresses; return how many there were."""
        return sum(
            self._gc.remove(list(self._replies(block, addresses)), force=True)
            for table in self._tables
            for block in table.blocks()
        )

    def _replies(self, block: Block, addresses: Collection[bytes]) -> Iterator[bytes]:
        """Yield the keys of the replies between the hooks, after the masquerade is undone."""
        for at, (*flow, reply) in enumerate(self._becomes.iter_unpack(block.values)):
            if not reply:
                continue
            destination, hook = self._arrives.unpack(block.key(at))
            if hook == self._ingress and destination in addresses:
                yield self._key.pack(*flow, self._egress)
