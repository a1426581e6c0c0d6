"""How many TCP connections each backend has open, as metrics tell it.

Connections by packets are counted where the connection GC reads the table anyway. Translated
sockets have no entry there. They have a place in ``bpf/maps/peer_names.h`` while they are open,
unless that place is another socket's.
"""

from __future__ import annotations

from collections import Counter
from itertools import compress

from bpfsvc.datapath.bpf_map import Block
from bpfsvc.datapath.maps.pins import Pinned


class OpenConnections:
    """Counts for one node; belongs to one thread."""

    def __init__(self, pinned: Pinned) -> None:
        layout = pinned.layout
        connections, names = layout.maps["connections"].value, layout.maps["peer_names"].value
        self._sockets = pinned.map("peer_names")
        # In words of 32 bits, as the fields are.
        self._counters = connections.offsets("counters")["counters"] // 4
        self._name_counters = names.offsets("counters")["counters"] // 4
        self._index = layout.constant("PEER_COUNTERS")
        self._counts: Counter[int] = Counter()

    def begin(self) -> None:
        """Begin a pass over ``connections``."""
        self._counts = Counter()

    def add(self, block: Block, is_open: bytes) -> None:
        """Count entries of ``connections``; ``is_open`` has a byte for each, 1 or 0."""
        width = len(block.values) // block.size // 4
        counters = memoryview(block.values).cast("I")[self._counters :: width]
        self._counts.update(compress(counters, is_open))

    def end(self) -> dict[int, int]:
        """Count sockets, too; return how many connections are open, by the ids of counters."""
        counts = self._counts
        for block in self._sockets.blocks():
            width = len(block.values) // block.size
            sockets = memoryview(block.values).cast("Q")[0 :: width // 8]
            counters = memoryview(block.values).cast("I")[self._name_counters :: width // 4]
            for index in compress(counters, sockets):
                counts[index & self._index] += 1
        del counts[0]  # of no backend
        return dict(counts)
