"""What an agent is told, as one value: made once from the command line, handed to everyone."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from bpfsvc.datapath.attachment import Way
from bpfsvc.datapath.netlink.hooks import PRIORITY
from bpfsvc.datapath.source import Sizes
from bpfsvc.datapath.sysctls import NODE_PORTS, PortRange
from bpfsvc.detection import Detection
from bpfsvc.model import Node
from bpfsvc.nodeports import PRIMARY
from bpfsvc.surroundings import ServiceConfig

DEFAULT_PIN_ROOT = Path("/sys/fs/bpf/bpfsvc")
DEFAULT_HEALTHZ = "0.0.0.0:10256"
DEFAULT_MASQUERADE_PORTS = PortRange(10000, 29999)


@dataclass(frozen=True, slots=True, kw_only=True)
class Lifetimes:
    """How long a silent connection is kept, in seconds; the defaults are those of conntrack."""

    tcp_established: int = 86400
    tcp_half_closed: int = 3600
    tcp_closed: int = 10
    udp: int = 120
    sctp: int = 210
    half_open: int = 60


@dataclass(frozen=True, slots=True, kw_only=True)
class Config:
    """Settings of one agent.

    * ``detection``: how pods of this node are told from strangers.
    * ``source_ranges_for_all``: ``loadBalancerSourceRanges`` hold for NodePorts and external IPs.
    * ``nodeport_addresses``: where NodePorts answer: CIDRs, or ``primary`` alone.
    * ``localhost_nodeports``: on IPv4 loopback as well, unless the list excludes it.
    * ``node_ports``: the API server's range of NodePorts.
    * ``cgroup_root``: the cgroup2 directory whose processes' sockets are translated; None: none.
    * ``devices``: patterns that choose interfaces; empty: all that carry pod or outside traffic.
    """

    manifests: Path
    node_name: str
    detection: Detection = field(default_factory=Detection)
    masquerade_all: bool = False
    source_ranges_for_all: bool = False
    nodeport_addresses: tuple[str, ...] = (PRIMARY,)
    localhost_nodeports: bool = True
    node_ports: PortRange = NODE_PORTS
    pin_root: Path = DEFAULT_PIN_ROOT
    cgroup_root: Path | None = None
    devices: tuple[str, ...] = ()
    attach: Way = "auto"
    tc_priority: int = PRIORITY
    healthz: tuple[str, int] | None = None
    masquerade_ports: PortRange = DEFAULT_MASQUERADE_PORTS
    sizes: Sizes = field(default_factory=Sizes)
    lifetimes: Lifetimes = field(default_factory=Lifetimes)
    collect_seconds: float = 5.0
    reconcile_seconds: float = 600.0

    def services(self, node: Node) -> ServiceConfig:
        """Give the settings of rows, of which some depend on what the Node object says."""
        families = self.detection.families(node)
        return ServiceConfig(
            detector_v4=4 in families,
            detector_v6=6 in families,
            masquerade_all=self.masquerade_all,
            source_ranges_for_all=self.source_ranges_for_all,
        )
