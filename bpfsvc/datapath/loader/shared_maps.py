"""Which maps a build shares with a newer one that is made beside it."""

from __future__ import annotations

from bpfsvc.datapath.maps.layout import Layout

OWN_MAPS = ("layout", "steps", "settings")
"""Maps that no two builds share. (The programs that are being replaced take over from nobody.)"""

CONNECTIONS = NEW, ESTABLISHED = ("new_connections", "connections")
"""Both tables are shared, or none: the programs move a connection from the first to the second."""


def is_shared(name: str, old: Layout, new: Layout) -> bool:
    """True if a map has the same layout in both builds, and belongs to both."""
    if name in OWN_MAPS:
        return False
    names = CONNECTIONS if name in CONNECTIONS else (name,)
    layouts = [(old.maps.get(of_map), new.maps.get(of_map)) for of_map in names]
    return all(before is not None and before == layout for before, layout in layouts)
