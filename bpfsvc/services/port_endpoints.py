"""The endpoints of one service port, and which of them this node may use."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from bpfsvc.model import Traits
from bpfsvc.services.entries import Backend, Place, ServicePort

Endpoints = dict[Place, Traits]


class Eligible(NamedTuple):
    """C and L, each sorted by its text. C is empty only if nothing is usable anywhere (not H)."""

    cluster: list[Backend]
    local: list[Backend]


NO_WEIGHTS: Mapping[Place, int] = {}


class PortEndpoints(NamedTuple):
    """All endpoints of one service port, merged, and which of them this node may use.

    * ``weights``: of the endpoints, as their slices have them.
    * ``everywhere``: C without topology, in the same order, for connections that overflow; empty if
      nobody asked for it.
    """

    key: ServicePort
    all: Endpoints
    eligible: Eligible
    weights: Mapping[Place, int] = NO_WEIGHTS
    everywhere: list[Backend] = []  # noqa: RUF012


class Uses(NamedTuple):
    """Which sets of endpoints some client of a service port uses: C, L."""

    cluster: bool
    local: bool
