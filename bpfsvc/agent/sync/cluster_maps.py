"""What the kernel's maps hold beside Services: networks of cluster IPs, and pods that opted out."""

from __future__ import annotations

from bpfsvc.agent.follower import Follower, Summaries
from bpfsvc.agent.reports import Reports
from bpfsvc.base.errors import MapFull
from bpfsvc.base.networks import Network
from bpfsvc.datapath.maps.service_maps import ServiceMaps
from bpfsvc.services.planner import Planner

_NETWORKS, _PODS = "networks", "pods"
"""Subjects of problems."""


class ClusterMaps(Follower):
    """Writes both maps when what they hold has changed; belongs to the agent's thread."""

    def __init__(self, planner: Planner, maps: ServiceMaps, reports: Reports) -> None:
        self._planner = planner
        self._maps = maps
        self._reports = reports
        self._networks: set[Network] | None = None
        self._opted_out: set[bytes] | None = None

    def follow(self, summaries: Summaries) -> None:  # noqa: ARG002
        """Write what has changed: the entries of Services are there before their guards."""
        self._write_networks()
        self._write_opted_out()

    def repair(self) -> int:
        """Write again what was written; return how many entries differed."""
        drift = 0
        if self._networks is not None:
            drift += self._maps.set_service_networks(self._networks)
        if self._opted_out is not None:
            drift += self._maps.set_opted_out(self._opted_out)
        return drift

    def _write_networks(self) -> None:
        networks = self._planner.service_networks()
        if networks == self._networks:
            return
        try:
            self._maps.set_service_networks(networks)
        except MapFull as error:
            text = "not all networks of cluster IPs are guarded"
            self._reports.map_full(_NETWORKS, text, error)
            return
        self._reports.clear_problem(_NETWORKS)
        self._networks = networks

    def _write_opted_out(self) -> None:
        """Write which pods of this node do not want the socket LB.

        Until the pods have been listed, the pods that an earlier agent wrote stay.
        """
        cache = self._planner.cache
        opted_out = cache.opted_out()
        if opted_out == self._opted_out or not (opted_out or cache.pods_seen):
            return
        try:
            self._maps.set_opted_out(opted_out)
        except MapFull as error:
            text = "not all pods that opted out of the socket LB do so"
            self._reports.map_full(_PODS, text, error)
            return
        self._reports.clear_problem(_PODS)
        self._opted_out = opted_out
