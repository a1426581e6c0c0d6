"""The modes: the programs or rules that make Services work on a node, and the clients' target.

=====================  =============================================================================
default                bpfsvc as it comes, without any flag; the first mode of every report
direct                 no load balancer at all: clients connect to the backend itself
kube-proxy-nftables    the real kube-proxy in its mode nftables, where its binary is found or given;
(-iptables, -ipvs)     likewise in its other modes
nftables, iptables,    the rules of such a kube-proxy, recorded, without kube-proxy (``baselines``)
iptables-nft, ipvs
tc                     bpfsvc with --socket-lb off: no socket is translated, only packets
stack                  bpfsvc with --fast-path off: all packets take the node's network stack
stack-tc               bpfsvc with both of them off
established            bpfsvc with --fast-path established: netfilter sees connections begin and end
xdp                    bpfsvc with --xdp on the uplink
observed, observed-tc  default and tc, and "bpfsvc observe" shows all events of both nodes
no-service             bpfsvc as it comes, and clients connect to the backend's pod at a port that
                       is in no Service: what bpfsvc costs all other traffic
no-service-stack       the same with --fast-path off
=====================  =============================================================================

The other modes of bpfsvc have names for their one difference from default. Nothing large is
imported here.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

Layout = Literal["nftables", "iptables", "ipvs"]
"""A mode of kube-proxy."""

DEFAULT, DIRECT = "default", "direct"
TC, STACK, STACK_TC, ESTABLISHED, XDP = "tc", "stack", "stack-tc", "established", "xdp"
OBSERVED, OBSERVED_TC = "observed", "observed-tc"
NO_SERVICE, NO_SERVICE_STACK = "no-service", "no-service-stack"
UPLINK = "eth0"

KUBE_PROXIES: Mapping[str, Layout] = {
    "kube-proxy-nftables": "nftables",
    "kube-proxy-iptables": "iptables",
    "kube-proxy-ipvs": "ipvs",
}
"""The real kube-proxy: its ``--proxy-mode``, by the name of the mode."""

RECORDED = ("nftables", "iptables", "iptables-nft", "ipvs")
"""Rules as kube-proxy writes them, without kube-proxy."""

_STACK = ("--fast-path", "off")
_TC = ("--socket-lb", "off")
AGENTS: Mapping[str, tuple[str, ...]] = {
    DEFAULT: (),
    TC: _TC,
    STACK: _STACK,
    STACK_TC: (*_STACK, *_TC),
    ESTABLISHED: ("--fast-path", "established"),
    XDP: ("--xdp", UPLINK),
    OBSERVED: (),
    OBSERVED_TC: _TC,
    NO_SERVICE: (),
    NO_SERVICE_STACK: _STACK,
}
"""The flags of agents in each mode of bpfsvc."""

READ = frozenset({OBSERVED, OBSERVED_TC})
"""Modes in which a reader of events runs on each node."""
UNSERVED = frozenset({NO_SERVICE, NO_SERVICE_STACK})
"""Modes with agents; their clients ask no Service."""
OURS = frozenset(AGENTS) - UNSERVED
BASELINES = frozenset({*RECORDED, *KUBE_PROXIES})

MODES = (
    DEFAULT,
    DIRECT,
    *KUBE_PROXIES,
    *RECORDED,
    *(mode for mode in AGENTS if mode != DEFAULT),
)
"""In the order of every report."""

RENAMED: Mapping[str, str] = {
    "socket": STACK,
    "fast": TC,
    "kube-proxy": ",".join(KUBE_PROXIES),
}
"""What modes of earlier versions are named now."""
