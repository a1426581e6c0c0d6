"""How long a mode takes to set up, for the plan of a run."""

from __future__ import annotations

from bpfsvc.devtools.bench.modes import AGENTS, KUBE_PROXIES

_LAB_SECONDS = 0.6
_AGENT_SECONDS = (1.5, 2e-4)  # for one, and for each Service
_KUBE_PROXY_SECONDS = (2.0, 2e-3)
_TOOL_SECONDS = {
    "iptables": (1.5e-4, 0.0),
    "iptables-nft": (1e-4, 8e-7),
    "nftables": (4e-4, 8e-8),
    "ipvs": (1e-3, 0.0),
}
"""For each Service, and for each pair of them: some modes take longer than in proportion."""


def setup_seconds(mode: str, services: int, limit: float = 60.0) -> float:
    """Return about how long a testbed takes to set up, its two nodes one after the other.

    ``limit``: seconds after which a baseline is given up, and the other node not tried.
    """
    if mode in AGENTS or mode in KUBE_PROXIES:
        once, per_service = _AGENT_SECONDS if mode in AGENTS else _KUBE_PROXY_SECONDS
        return _LAB_SECONDS + 2 * (once + per_service * services)
    per_service, pair = _TOOL_SECONDS.get(mode, (0.0, 0.0))
    node = per_service * services + pair * services**2
    return _LAB_SECONDS + (limit if node > limit else 2 * node)
