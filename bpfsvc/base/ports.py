"""Ranges of ports, as flags, files and sysctls write them."""

from __future__ import annotations

from typing import NamedTuple


class PortRange(NamedTuple):
    """Ports from ``first`` to ``last``, both included."""

    first: int
    last: int

    def __str__(self) -> str:
        return f"{self.first}-{self.last}" if self.first != self.last else str(self.first)


NODE_PORTS = PortRange(30000, 32767)
"""The API server's default ``--service-node-port-range``."""
