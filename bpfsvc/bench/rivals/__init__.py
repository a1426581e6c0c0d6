"""What bpfsvc is compared with: a node's rules as kube-proxy lays them out, without kube-proxy.

The parts::

    balanced     what is to be balanced, on which node, and one run of a tool
    iptables     chains and rules for iptables-restore, legacy and nft alike
    nftables     maps, chains and rules for nft
    ipvs         virtual services, sets, addresses and the few rules beside them
    counters     those that kube-proxy's metrics need, and iptables' rules name
    running      runs the tools of a layout in a node
    programming  writes a layout into a node within a time limit; says what this machine has
    kubeproxy    the real one, where somebody gives its binary

The layouts follow what kube-proxy 1.36 is observed to write with its usual settings (its output,
not its source), as far as a packet or the kernel notices: every chain, rule, set and map on the way
of a packet, and the order in which it meets them. Left out are chains, sets and maps that no packet
comes by in such a cluster, comments in nftables, and what kube-proxy does beside the rules: its
``iptables-save`` before each change in small clusters, its lists of sets and chains, the end of
flows of UDP. Where a kernel or its tools have no nfacct, the rules that need it are missing, as
they are with kube-proxy. IPv4 only, like the labs of the benchmark.
"""

from __future__ import annotations

from bpfsvc.bench.rivals.balanced import Balanced
from bpfsvc.bench.rivals.kubeproxy import KubeProxy
from bpfsvc.bench.rivals.programming import (
    MODES,
    Change,
    Mode,
    change,
    modes,
    prepare,
    program,
)
from bpfsvc.bench.rivals.running import RivalFailed, Took, TooSlow

__all__ = [
    "MODES",
    "Balanced",
    "Change",
    "KubeProxy",
    "Mode",
    "RivalFailed",
    "TooSlow",
    "Took",
    "change",
    "modes",
    "prepare",
    "program",
]
