"""What an agent is told, as one value: made once from a file or flags, handed to everyone.

:mod:`bpfsvc.settings` makes it. Here stand only the values that an agent works with.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, get_args

from bpfsvc.datapath.attachment import Way
from bpfsvc.datapath.conntrack import Conntrack
from bpfsvc.datapath.netlink.hooks import PRIORITY
from bpfsvc.datapath.source import Sizes
from bpfsvc.datapath.sysctls import NODE_PORTS, PortRange
from bpfsvc.detection import Detection
from bpfsvc.model import Node
from bpfsvc.nodeports import PRIMARY
from bpfsvc.surroundings import ServiceConfig

DEFAULT_PIN_ROOT = Path("/sys/fs/bpf/bpfsvc")
DEFAULT_LAST_GOOD = Path("/var/lib/bpfsvc/last-good")
DEFAULT_HEALTHZ = "0.0.0.0:10256"
DEFAULT_METRICS = "127.0.0.1:10249"
DEFAULT_MASQUERADE_PORTS = PortRange(10000, 29999)

DEFAULT_MESH_PORTS = (15001, 4140)
"""Where the proxies of Istio and of Linkerd take what their pod sends."""

MOST_MESH_PORTS = 4

ProxyMode = Literal["iptables", "ipvs", "nftables"]
"""kube-proxy's modes. Rows are the same in all; it says which block of its settings counts."""

SocketLb = Literal["off", "host", "all"]
SOCKET_LB: tuple[SocketLb, ...] = get_args(SocketLb)


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

    Where the objects come from:

    * ``manifests``: a directory of them; None: the API server.
    * ``kubeconfig``, ``master``: how to reach it; without both, as a pod does.
    * ``last_good``: the file that a node without an API server begins with; None: there is none.
    * ``patience_seconds``: how long the server may be silent at the start before that file is used.

    How Services work:

    * ``mode``: whose behaviour was asked for; told at ``/proxyMode``.
    * ``detection``: how pods of this node are told from strangers.
    * ``source_ranges_for_all``: ``loadBalancerSourceRanges`` hold for NodePorts and external IPs.
    * ``allow_external_ips``: Services answer on ``spec.externalIPs``.
    * ``nodeport_addresses``: where NodePorts answer: CIDRs, or ``primary`` alone. A family without
      a CIDR answers everywhere.
    * ``localhost_nodeports``: on IPv4 loopback as well, unless the list excludes it.
    * ``node_ports``: the API server's range of NodePorts.
    * ``address_override``: packed, at most one: the node's address in place of what its Node object
      says first in that family, and of the primary family then.

    On this machine:

    * ``cache``: where compiled programs are kept for the next boot; None: nowhere.
    * ``cgroup_root``: the cgroup2 directory whose processes' sockets are translated; None: none.
    * ``socket_lb``: whose sockets: of the node and its pods, of the node alone, of nobody.
    * ``mesh_ports``: a pod that listens there on its loopback address has a proxy of its own that
      wants to see where its pod sends: its sockets are left alone.
    * ``devices``: patterns that choose interfaces; empty: all that carry pod or outside traffic.
    * ``fast_path``: translated packets go straight to the interface or pod where they leave, past
      netfilter.
    * ``xdp``: patterns of the uplinks on which XDP forwards what is for backends elsewhere; empty:
      none; ``auto`` alone: those that do it natively.
    * ``conntrack``: netfilter's limits and lifetimes. ``lifetimes``: those of our own connections.
    * ``oom_score_adj``: how unwilling the kernel is to kill the agent; None: as it was started.

    What it serves:

    * ``healthz``, ``metrics``: where, each an address and a port; None: nowhere.
    * ``bind_address_hard_fail``: end when one of these is taken, rather than try again.
    * ``sync_seconds``: a change that is not in the kernel for twice as long makes it unhealthy.
    * ``profiling``: whether what helps to find faults of the agent is served too.

    What it was told:

    * ``document``: the effective configuration, keyed as ``/configz`` shows it.
    """

    manifests: Path | None = None
    kubeconfig: Path | None = None
    master: str = ""
    last_good: Path | None = None
    patience_seconds: float = 10.0
    node_name: str
    mode: ProxyMode = "nftables"
    detection: Detection = field(default_factory=Detection)
    masquerade_all: bool = False
    source_ranges_for_all: bool = False
    allow_external_ips: bool = True
    nodeport_addresses: tuple[str, ...] = (PRIMARY,)
    localhost_nodeports: bool = True
    node_ports: PortRange = NODE_PORTS
    address_override: tuple[bytes, ...] = ()
    pin_root: Path = DEFAULT_PIN_ROOT
    cache: Path | None = None
    cgroup_root: Path | None = None
    socket_lb: SocketLb = "all"
    mesh_ports: tuple[int, ...] = DEFAULT_MESH_PORTS
    devices: tuple[str, ...] = ()
    fast_path: bool = False
    xdp: tuple[str, ...] = ()
    attach: Way = "auto"
    tc_priority: int = PRIORITY
    masquerade_ports: PortRange = DEFAULT_MASQUERADE_PORTS
    sizes: Sizes = field(default_factory=Sizes)
    lifetimes: Lifetimes = field(default_factory=Lifetimes)
    conntrack: Conntrack = field(default_factory=Conntrack)
    oom_score_adj: int | None = None
    healthz: tuple[str, int] | None = None
    metrics: tuple[str, int] | None = None
    bind_address_hard_fail: bool = False
    sync_seconds: float = 30.0
    profiling: bool = False
    document: Mapping[str, Any] = field(default_factory=dict, compare=False)
    collect_seconds: float = 5.0
    reconcile_seconds: float = 600.0

    def services(self, node: Node) -> ServiceConfig:
        """Give the settings of rows, of which some depend on what the Node object says."""
        families = self.detection.families(node)
        return ServiceConfig(
            detector_v4=4 in families,
            detector_v6=6 in families,
            masquerade_all=self.masquerade_all,
            allow_external_ips=self.allow_external_ips,
            source_ranges_for_all=self.source_ranges_for_all,
        )
