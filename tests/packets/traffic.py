"""The traffic counters of a backend."""

from __future__ import annotations

from bpfsvc.inspect.fields import total
from tests.packets.node import Node


def counted(node: Node, counters_id: int) -> dict[str, int]:
    """Return what a backend has counted, over all CPUs, by the names of the fields."""
    layout = node.pinned.layout.maps["backend_counters"]
    raw = node.pinned.map("backend_counters").lookup(counters_id.to_bytes(4, "little")) or b""
    names = layout.value.names
    return dict(zip(names, total(layout, names)(raw), strict=True))
