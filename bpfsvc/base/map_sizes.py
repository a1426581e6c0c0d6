"""Sizes of the kernel maps: configuration sets them, they are applied when a build is loaded."""

from __future__ import annotations

from dataclasses import dataclass, fields


@dataclass(frozen=True, slots=True, kw_only=True)
class Sizes:
    """Entries of each map, each with the flag that sets it (``--max-frontends`` and so on)."""

    max_services: int = 65536
    max_frontends: int = 131072
    max_backends: int = 65536
    max_backend_slots: int = 262144
    max_connections: int = 1048576
    max_new_connections: int = 65536
    max_direct_flows: int = 262144
    max_node_addresses: int = 4096
    max_interfaces: int = 16384
    max_source_ranges: int = 65536
    max_affinities: int = 65536
    max_schedule_chunks: int = 16384

    @property
    def max_closed_flows(self) -> int:
        """Entries of each queue of closed connections: one for every fourth pair of the table."""
        return max(1, self.max_connections // 8)

    def defines(self) -> dict[str, int]:
        """Return the values of the macros of the C sources: ``MAX_FRONTENDS`` and so on."""
        return {name.upper(): getattr(self, name) for name in SIZE_NAMES}


SIZE_NAMES = (*(size.name for size in fields(Sizes)), "max_closed_flows")
"""``max_services`` and so on; the last follows from another."""
