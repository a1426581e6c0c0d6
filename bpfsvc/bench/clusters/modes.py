"""The modes: what a node gets so that Services work, and what a cluster is to each of them.

====================  ==============================================================================
direct                nothing: clients go straight to the backend
iptables, ...         rules as kube-proxy lays them out (``rivals``)
kube-proxy            the real one, where its binary is given
tc                    bpfsvc; packets of pods are translated by tc, the node's sockets by hooks
socket                the same, and pods' sockets by hooks too
fast                  as tc, and what was translated leaves past the stack
xdp                   as tc, and XDP on the uplink forwards what is for another node
====================  ==============================================================================

Where a rival looks through its rules one after the other, the measured Service stands in the middle
of them: what a Service costs there on average. (kube-proxy itself writes them in no order.)
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from ipaddress import IPv4Network
from pathlib import Path

from bpfsvc.bench import rivals
from bpfsvc.bench.clusters.objects import (
    FILLER_PORT,
    MEASURED,
    NAME,
    NODE_PORT,
    PORT,
    fillers,
    write_cluster,
)
from bpfsvc.bench.results import MODES
from bpfsvc.bench.rivals import Balanced
from bpfsvc.lab.topology import CLUSTER_CIDRS

DIRECT, KUBE_PROXY = "direct", "kube-proxy"
UPLINK = "eth0"

AGENTS: Mapping[str, tuple[str, ...]] = {
    "tc": ("--socket-lb", "host"),
    "socket": ("--socket-lb", "all"),
    "fast": ("--socket-lb", "host", "--fast-path"),
    "xdp": ("--socket-lb", "host", "--xdp", UPLINK),
}
"""The flags of the agents of a mode."""

PODS = IPv4Network(CLUSTER_CIDRS[4])
"""The range of all pods."""

_NAMESPACE = "bench"


def measured_balanced(backend: str, port: int) -> tuple[Balanced, Balanced]:
    """Give the ports of the measured Service as a rival takes them: TCP, UDP."""
    tcp, udp = (
        Balanced(
            f"{_NAMESPACE}/{NAME}:{protocol}",
            MEASURED,
            PORT,
            protocol,
            NODE_PORT,
            ((backend, port),),
        )
        for protocol in ("tcp", "udp")
    )
    return tcp, udp


def balanced(services: int, backend: str, port: int) -> list[Balanced]:
    """Give all ports of a cluster, those of the measured Service in the middle."""
    others = [
        Balanced(
            f"{_NAMESPACE}/{filler.name}:tcp",
            filler.address,
            PORT,
            "tcp",
            0,
            tuple((address, FILLER_PORT) for address in filler.endpoints),
        )
        for filler in fillers(services)
    ]
    middle = len(others) // 2
    return [*others[:middle], *measured_balanced(backend, port), *others[middle:]]


@dataclass(slots=True)
class Cluster:
    """A cluster of ``services`` Services in every form that a mode takes; made when asked for.

    ``directory``: for its files, alone. ``backend`` and ``port``: what serves the measured Service.
    """

    services: int
    directory: Path
    backend: str
    port: int
    _balanced: list[Balanced] = field(default_factory=list)

    def manifests(self) -> Path:
        """Give a directory with a file for each object."""
        place = self.directory / "manifests"
        if not place.exists():
            write_cluster(place, self.services, self.backend, self.port)
        return place

    def balanced(self) -> Sequence[Balanced]:
        """Give the ports for ``rivals.program``."""
        if not self._balanced:
            self._balanced = balanced(self.services, self.backend, self.port)
        return self._balanced


def possible(wanted: Sequence[str], *, kube_proxy: bool) -> tuple[list[str], list[str]]:
    """Give those of the modes wanted that can be set up here, and a note for each other one.

    ``wanted`` empty means all. ``direct`` is always among them, for all are compared with it.
    """
    here = {str(mode): reason for mode, reason in rivals.modes().items()}
    found, notes = [], []
    for mode in MODES:
        if wanted and mode not in (*wanted, DIRECT):
            continue
        if mode == KUBE_PROXY and not kube_proxy:
            if mode in wanted:
                notes.append("kube-proxy was not measured: its binary is to be given")
        elif reason := here.get(mode, ""):
            notes.append(f"{mode} was not measured: {reason}")
        else:
            found.append(mode)
    return found, notes
