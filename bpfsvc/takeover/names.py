"""What kube-proxy calls what is its own, in all its modes, and what looks alike but is not.

The names are those of kubernetes/kubernetes: ``pkg/proxy/iptables/proxier.go``, ``pkg/proxy/ipvs/``
(``proxier.go``, ``ipset.go``), ``pkg/proxy/nftables/proxier.go``, and of the userspace mode that
was removed in 1.26. The kubelet keeps chains of its own whose names begin alike (KUBE-FIREWALL,
KUBE-IPTABLES-HINT, KUBE-KUBELET-CANARY), and so do network policy controllers (KUBE-ROUTER-...,
KUBE-POD-FW-..., sets KUBE-SRC-..., KUBE-DST-...): whatever is not listed here is somebody else's.
"""

from __future__ import annotations

MARK_MASQUERADE = "KUBE-MARK-MASQ"
MASQUERADE = "KUBE-POSTROUTING"
"""The chain that marks, and the one that masquerades what is marked: one is of no use alone."""

FORWARD = "KUBE-FORWARD"
"""Accepts the traffic of Services where the policy of FORWARD is DROP."""

_CHAINS = frozenset(
    {
        "KUBE-SERVICES",
        "KUBE-EXTERNAL-SERVICES",
        "KUBE-NODEPORTS",
        MASQUERADE,
        MARK_MASQUERADE,
        "KUBE-MARK-DROP",
        FORWARD,
        "KUBE-PROXY-FIREWALL",
        "KUBE-PROXY-CANARY",
        # ipvs
        "KUBE-NODE-PORT",
        "KUBE-LOAD-BALANCER",
        "KUBE-SOURCE-RANGES-FIREWALL",
        "KUBE-IPVS-FILTER",
        "KUBE-IPVS-OUT-FILTER",
        # userspace, and before chains were per Service
        "KUBE-PORTALS-CONTAINER",
        "KUBE-PORTALS-HOST",
        "KUBE-NODEPORT-CONTAINER",
        "KUBE-NODEPORT-HOST",
        "KUBE-NODEPORT-NON-LOCAL",
    }
)

_CHAINS_OF_SERVICES = (
    "KUBE-SVC-",
    "KUBE-SVL-",
    "KUBE-SEP-",
    "KUBE-FW-",
    "KUBE-XLB-",
    "KUBE-EXT-",
)

_SETS = frozenset(
    {
        "LOOP-BACK",
        "CLUSTER-IP",
        "EXTERNAL-IP",
        "EXTERNAL-IP-LOCAL",
        "LOAD-BALANCER",
        "LOAD-BALANCER-LOCAL",
        "LOAD-BALANCER-FW",
        "LOAD-BALANCER-SOURCE-IP",
        "LOAD-BALANCER-SOURCE-CIDR",
        "NODE-PORT-TCP",
        "NODE-PORT-LOCAL-TCP",
        "NODE-PORT-UDP",
        "NODE-PORT-LOCAL-UDP",
        "NODE-PORT-SCTP-HASH",
        "NODE-PORT-LOCAL-SCTP-HASH",
        "HEALTH-CHECK-NODE-PORT",
        "IPVS-IPS",
    }
)

NFT_TABLE = "kube-proxy"
"""The name of kube-proxy's nftables tables, one of family ip and one of ip6."""

DUMMY_DEVICE = "kube-ipvs0"
"""Holds the addresses of all Services in ipvs mode."""


def is_chain(name: str) -> bool:
    """Whether an iptables chain is kube-proxy's."""
    return name in _CHAINS or name.startswith(_CHAINS_OF_SERVICES)


def is_set(name: str) -> bool:
    """Whether an ipset is kube-proxy's; those of IPv6 begin with ``KUBE-6-``."""
    for prefix in ("KUBE-6-", "KUBE-"):
        if name.startswith(prefix):
            return name.removeprefix(prefix) in _SETS
    return False
