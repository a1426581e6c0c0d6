"""How much the fast path serves on a node: its level."""

from __future__ import annotations

from typing import Literal, NamedTuple

FastPathLevel = Literal["fast", "established", "stack"]

FAST: FastPathLevel = "fast"
"""Connections take the fast path as a whole; netfilter sees none of their packets."""

ESTABLISHED: FastPathLevel = "established"
"""Connections take it once netfilter has accepted them; netfilter sees them begin and end."""

STACK: FastPathLevel = "stack"
"""The node's network stack serves all packets."""

LEVELS = (FAST, ESTABLISHED, STACK)
"""The best level first."""

LEVELS_OF_MODE = {"auto": (FAST, ESTABLISHED), "established": (ESTABLISHED,)}
"""By the value of ``--fast-path``: the levels to choose from, beside the stack."""


class FastPathUse(NamedTuple):
    """The level of a node, and why the node gets no better level; "" for the best."""

    level: FastPathLevel
    reason: str = ""
