"""How long a mode takes to set up, for the plan of a run; and which are not tried as too slow."""

from __future__ import annotations

from collections.abc import Mapping, MutableMapping

from bpfsvc.bench.clusters.modes import AGENTS, KUBE_PROXY
from bpfsvc.bench.words import services as in_words

_LAB_SECONDS = 0.6
_AGENT_SECONDS = (1.5, 2e-4)  # for one, and for each Service
_KUBE_PROXY_SECONDS = (2.0, 2e-3)
_TOOL_SECONDS = {
    "iptables": (1.5e-4, 0.0),
    "iptables-nft": (1e-4, 8e-7),
    "nftables": (4e-4, 8e-8),
    "ipvs": (1e-3, 0.0),
}
"""For each Service, and for each pair of them: some grow worse the more there is."""


def setup_seconds(mode: str, services: int, limit: float = 60.0) -> float:
    """Reckon how long a stand takes to set up, its two nodes one after the other.

    ``limit``: seconds after which a rival is given up, and the other node not tried.
    """
    if mode in AGENTS or mode == KUBE_PROXY:
        once, each = _AGENT_SECONDS if mode in AGENTS else _KUBE_PROXY_SECONDS
        return _LAB_SECONDS + 2 * (once + each * services)
    each, pair = _TOOL_SECONDS.get(mode, (0.0, 0.0))
    node = each * services + pair * services**2
    return _LAB_SECONDS + (limit if node > limit else 2 * node)


def too_slow(slow: Mapping[str, int], mode: str, services: int) -> str:
    """Say why a mode is not tried with so many Services; empty if it is to be.

    ``slow``: by mode, the smallest cluster that took it too long.
    """
    known = slow.get(mode, services + 1)
    return "" if services < known else f"not tried: {in_words(known)} took too long already"


def was_too_slow(slow: MutableMapping[str, int], mode: str, services: int) -> None:
    """Note that so many Services took a mode too long."""
    slow[mode] = min(services, slow.get(mode, services))
