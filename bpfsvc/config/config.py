"""The settings of one agent as values it works with. :mod:`.loading` makes them of the documents.

No default is here: :mod:`.kubeproxy_v1alpha1` and :mod:`.bpfsvc_v1alpha1` have all defaults.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, NamedTuple, get_args

from bpfsvc.base.attachment import AttachMode
from bpfsvc.base.map_sizes import Sizes
from bpfsvc.base.ports import PortRange
from bpfsvc.base.service_series import ServiceSeries
from bpfsvc.config.local_detector import LocalDetector
from bpfsvc.model import Node
from bpfsvc.services.rules.context import ServiceConfig
from bpfsvc.services.scheduling.schedulers import Scheduler

MOST_CONNECTIONS = 1 << 20
"""netfilter's limit is not scaled beyond this, however many processors there are."""

ProxyMode = Literal["iptables", "ipvs", "nftables"]
"""kube-proxy's modes. The mode chooses which block counts; Services work the same in all."""

SocketLb = Literal["off", "host", "all"]
SOCKET_LB: tuple[SocketLb, ...] = get_args(SocketLb)

FastPath = Literal["auto", "established", "off"]
FAST_PATH: tuple[FastPath, ...] = get_args(FastPath)

VipEcho = Literal["auto", "on", "off"]
VIP_ECHO: tuple[VipEcho, ...] = get_args(VipEcho)


@dataclass(frozen=True, slots=True, kw_only=True)
class Lifetimes:
    """How long an idle connection is kept, in seconds; netfilter's lifetimes if not given."""

    tcp_established: int = 86400
    tcp_half_closed: int = 3600
    tcp_closed: int = 10
    udp: int = 120
    sctp: int = 210
    half_open: int = 60


@dataclass(frozen=True, slots=True, kw_only=True)
class Conntrack:
    """netfilter's limits and lifetimes. Zero leaves a value as it is; times in seconds.

    ``min``: connections to allow at least, whatever the number of processors.
    """

    max_per_core: int
    min: int
    tcp_established: int
    tcp_close_wait: int
    tcp_be_liberal: bool
    udp: int
    udp_stream: int

    def limit(self, processors: int) -> int:
        """Return the wanted number of connections; 0 leaves the limit as it is."""
        if self.max_per_core == 0:
            return 0
        scaled = self.max_per_core * processors
        return MOST_CONNECTIONS if scaled > MOST_CONNECTIONS else max(scaled, self.min)

    def values(self, processors: int) -> dict[str, int]:
        """Return the wanted sysctls, by name under ``net.netfilter``."""
        wanted = {
            "nf_conntrack_max": self.limit(processors),
            "nf_conntrack_tcp_timeout_established": self.tcp_established,
            "nf_conntrack_tcp_timeout_close_wait": self.tcp_close_wait,
            "nf_conntrack_tcp_be_liberal": int(self.tcp_be_liberal),
            "nf_conntrack_udp_timeout": self.udp,
            "nf_conntrack_udp_timeout_stream": self.udp_stream,
        }
        return {name: value for name, value in wanted.items() if value}


class HistorySettings(NamedTuple):
    """The memory of what has changed.

    * ``file``: keeps it over restarts; None: it ends with the agent.
    * ``megabytes``: of memory, and as much in files; 0: nothing is remembered.
    """

    file: Path | None
    megabytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Config:
    """Settings of one agent.

    Where the objects come from:

    * ``manifests``: a directory with them; None: the API server.
    * ``kubeconfig``, ``master``: how to reach the API server; without both, as a pod does.
    * ``last_good``: the snapshot file, used when the API server is unreachable at boot; None: none.
    * ``patience_seconds``: how long to wait for the API server at boot before the snapshot is used.
    * ``history``: how much of what has changed is remembered, and where.

    How Services work:

    * ``mode``: kube-proxy's mode that was configured; shown at ``/proxyMode``.
    * ``detection``: how pods of this node are identified.
    * ``scheduler``: how Services without a scheduler of their own choose a backend.
    * ``source_ranges_for_all``: ``loadBalancerSourceRanges`` hold for NodePorts and external IPs.
    * ``allow_external_ips``: Services answer on ``spec.externalIPs``.
    * ``vip_echo``: echo requests to the addresses of Services that have endpoints are answered.
    * ``nodeport_addresses``: where NodePorts answer: CIDRs and keywords. A family without
      a CIDR answers on all its addresses.
    * ``localhost_nodeports``: on IPv4 loopback as well, unless the list excludes it.
    * ``node_ports``: the API server's range of NodePorts.
    * ``address_override``: packed, at most one: replaces the first address of its family in the
      Node object, and makes that family the primary one.

    On this machine:

    * ``cache``: directory of programs that were compiled here, for the next boot; None: nowhere.
    * ``programs``: directory of compiled programs that came with bpfsvc; None: none are used.
    * ``cgroup_root``: cgroup2 directory of the processes that the socket LB serves; None: none.
    * ``socket_lb``: which sockets it serves: of the node and its pods, of the node alone, none.
    * ``mesh_ports``: a pod that listens on one of these on loopback has a mesh proxy that wants to
      see the Service's address: the socket LB leaves its sockets alone.
    * ``devices``: patterns of interfaces; empty: all that carry pod or outside traffic.
    * ``fast_path``: ``auto``: packets of pods go directly to where they leave, past netfilter,
      as far as the node's rules allow. ``established``: only packets in the middle
      of a connection, so that netfilter sees connections begin and end. ``off``: none.
    * ``xdp``: patterns of the uplinks on which XDP forwards to backends on other nodes; empty:
      none; ``auto`` alone: the uplinks with a driver that supports XDP.
    * ``conntrack``: netfilter's limits and lifetimes. ``lifetimes``: of our own connections.
    * ``oom_score_adj``: how unlikely the kernel is to kill the agent; None: unchanged.

    What it serves:

    * ``healthz``, ``metrics``: address and port to serve on; None: not served.
    * ``ui``: address and port of the page for people; None: there is none.
    * ``metrics_services``: which Services have metrics of their own.
    * ``count_drops_elsewhere``: what other parts of the node drop of Services' packets is counted.
    * ``bind_address_hard_fail``: exit when such a port is in use, rather than try again.
    * ``sync_seconds``: the agent is unhealthy if a change takes more than twice as long.
    * ``profiling``: serve pages for finding faults in the agent too.

    ``document`` is the effective configuration as ``/configz`` shows it.
    """

    manifests: Path | None
    kubeconfig: Path | None
    master: str
    last_good: Path | None
    patience_seconds: float
    history: HistorySettings
    node_name: str
    mode: ProxyMode
    detection: LocalDetector
    masquerade_all: bool
    scheduler: Scheduler
    source_ranges_for_all: bool
    allow_external_ips: bool
    vip_echo: bool
    nodeport_addresses: tuple[str, ...]
    localhost_nodeports: bool
    node_ports: PortRange
    address_override: tuple[bytes, ...]
    pin_root: Path
    cache: Path | None
    programs: Path | None
    cgroup_root: Path | None
    socket_lb: SocketLb
    mesh_ports: tuple[int, ...]
    devices: tuple[str, ...]
    fast_path: FastPath
    xdp: tuple[str, ...]
    attach: AttachMode
    tc_priority: int
    masquerade_ports: PortRange
    sizes: Sizes
    lifetimes: Lifetimes
    conntrack: Conntrack
    oom_score_adj: int | None
    healthz: tuple[str, int] | None
    metrics: tuple[str, int] | None
    ui: tuple[str, int] | None
    metrics_services: ServiceSeries
    count_drops_elsewhere: bool
    bind_address_hard_fail: bool
    sync_seconds: float
    profiling: bool
    document: Mapping[str, Any] = field(compare=False)

    def services(self, node: Node) -> ServiceConfig:
        """Return the settings for Services; the detector's families depend on the Node object."""
        families = self.detection.families(node)
        return ServiceConfig(
            detector_v4=4 in families,
            detector_v6=6 in families,
            masquerade_all=self.masquerade_all,
            allow_external_ips=self.allow_external_ips,
            source_ranges_for_all=self.source_ranges_for_all,
            scheduler=self.scheduler,
            vip_echo=self.vip_echo,
        )
