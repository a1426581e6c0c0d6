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
    return all(old.maps.get(each) == new.maps.get(each) is not None for each in names)
