"""What bpfsvc is compared with: a node's rules as kube-proxy lays them out, without kube-proxy.

The parts::

    balanced     what is to be balanced, on which node, and one run of a tool
    iptables     chains and rules for iptables-restore, legacy and nft alike
    nftables     maps, chains and rules for nft
    ipvs         virtual services, sets, addresses and the few rules beside them
    programming  writes them into a node within a time limit; says what this machine has
    kubeproxy    the real one, where somebody gives its binary

The layouts follow what kube-proxy 1.36 is observed to write (its output, not its source), as far
as a packet or the kernel notices: every chain, rule and map on the way of a packet and the order in
which it meets them. What serves kube-proxy alone (metrics by nfacct) is left out. IPv4 only, like
the labs of the benchmark.
"""

from __future__ import annotations

from bpfsvc.bench.rivals.balanced import Balanced
from bpfsvc.bench.rivals.kubeproxy import KubeProxy
from bpfsvc.bench.rivals.programming import (
    MODES,
    Mode,
    RivalFailed,
    TooSlow,
    change,
    modes,
    prepare,
    program,
)

__all__ = [
    "MODES",
    "Balanced",
    "KubeProxy",
    "Mode",
    "RivalFailed",
    "TooSlow",
    "change",
    "modes",
    "prepare",
    "program",
]
