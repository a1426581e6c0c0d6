"""How many source ports the busiest backend has in use: ports end for each backend by itself.

A masqueraded connection needs a port that no other connection from the same address of the node to
the same backend has. The programs try ports and count none, so they are counted where the
connection GC reads the table anyway.
"""

from __future__ import annotations

from collections import Counter
from itertools import compress

from bpfsvc.agent.flows.byte_tables import equal, other_than
from bpfsvc.datapath.bpf_map import Block
from bpfsvc.datapath.maps.layout import Layout


class PortUse:
    """Counts the entries of one pass over ``connections``.

    An entry of a backend's packets that come in by the wire has the backend, the address that the
    backend answers to, and the port that is in use there.
    """

    def __init__(self, layout: Layout) -> None:
        """Raises :class:`KernelError` for a layout without these fields."""
        connections, constant = layout.maps["connections"], layout.constant
        in_key = connections.key.offsets("destination_port", "hook")
        in_value = connections.value.offsets("reply", "outside")
        self._port, self._hook = in_key["destination_port"], in_key["hook"]
        self._reply, self._outside = in_value["reply"], in_value["outside"]
        self._ingress = equal(constant("HOOK_INGRESS"))
        self._translated = other_than(constant("OUTSIDE_UNTRANSLATED"))
        self._counts: Counter[bytes] = Counter()

    def add(self, block: Block) -> None:
        """Count the entries of a block."""
        in_key, in_value = len(block.keys) // block.size, len(block.values) // block.size
        hooks = block.keys[self._hook :: in_key].translate(self._ingress)
        replies = block.values[self._reply :: in_value]
        translated = block.values[self._outside :: in_value].translate(self._translated)
        lanes = (int.from_bytes(column, "little") for column in (hooks, replies, translated))
        chosen = next(lanes) & next(lanes) & next(lanes)
        if not chosen:
            return
        port, keys = self._port, block.keys
        starts = compress(range(0, len(keys), in_key), chosen.to_bytes(block.size, "little"))
        self._counts.update(
            keys[at : at + port] + keys[at + port + 2 : at + in_key] for at in starts
        )

    def busiest(self) -> int:
        """Return the most ports in use from one address to one backend, by one protocol."""
        return max(self._counts.values(), default=0)
