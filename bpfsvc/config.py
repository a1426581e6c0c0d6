"""What an agent is told, as one value: made once from the command line, handed to everyone."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from bpfsvc.datapath.attachment import Way
from bpfsvc.datapath.netlink.hooks import PRIORITY
from bpfsvc.datapath.source import Sizes
from bpfsvc.datapath.sysctls import PortRange

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
    half_open: int = 60


@dataclass(frozen=True, slots=True, kw_only=True)
class Config:
    """Settings of one agent.

    * ``cluster_cidrs``: the pod ranges, at most one per family; without one of a family, pods of
      that family cannot be told from strangers.
    * ``cgroup_root``: the cgroup2 directory whose processes' sockets are translated; None: none.
    * ``devices``: patterns that choose interfaces; empty: all that carry pod or outside traffic.
    """

    manifests: Path
    node_name: str
    cluster_cidrs: tuple[str, ...] = ()
    masquerade_all: bool = False
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
