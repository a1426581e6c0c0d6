"""The names of kube-proxy's chains, sets, tables and devices, in all its modes.

kubernetes/kubernetes has the names: ``pkg/proxy/iptables/proxier.go``, ``pkg/proxy/ipvs/``
(``proxier.go``, ``ipset.go``), ``pkg/proxy/nftables/proxier.go``, and the userspace mode that was
removed in 1.26. Names of the kubelet's own chains begin alike (KUBE-FIREWALL, KUBE-IPTABLES-HINT,
KUBE-KUBELET-CANARY), and so do names of network policy controllers (KUBE-ROUTER-...,
KUBE-POD-FW-..., sets KUBE-SRC-..., KUBE-DST-...): a name that is not listed here belongs to
another program.
"""

from __future__ import annotations

MARK_MASQUERADE = "KUBE-MARK-MASQ"
MASQUERADE = "KUBE-POSTROUTING"
"""The chain that marks packets, and the chain that masquerades them: neither works alone."""

FORWARD = "KUBE-FORWARD"
"""Accepts the traffic of Services where the policy of FORWARD is DROP."""

_CHAINS = frozenset(
    {
        *("KUBE-SERVICES", "KUBE-EXTERNAL-SERVICES", "KUBE-NODEPORTS", MASQUERADE, MARK_MASQUERADE),
        *("KUBE-MARK-DROP", FORWARD, "KUBE-PROXY-FIREWALL", "KUBE-PROXY-CANARY"),
        # ipvs
        *("KUBE-NODE-PORT", "KUBE-LOAD-BALANCER", "KUBE-SOURCE-RANGES-FIREWALL"),
        *("KUBE-IPVS-FILTER", "KUBE-IPVS-OUT-FILTER"),
        # userspace, and before chains were per Service
        *("KUBE-PORTALS-CONTAINER", "KUBE-PORTALS-HOST", "KUBE-NODEPORT-CONTAINER"),
        *("KUBE-NODEPORT-HOST", "KUBE-NODEPORT-NON-LOCAL"),
    }
)

_CHAINS_OF_SERVICES = tuple(f"KUBE-{kind}-" for kind in ("SVC", "SVL", "SEP", "FW", "XLB", "EXT"))

_SETS = frozenset(
    {
        *("LOOP-BACK", "CLUSTER-IP", "EXTERNAL-IP", "EXTERNAL-IP-LOCAL", "HEALTH-CHECK-NODE-PORT"),
        *("LOAD-BALANCER", "LOAD-BALANCER-LOCAL", "LOAD-BALANCER-FW", "LOAD-BALANCER-SOURCE-IP"),
        *("LOAD-BALANCER-SOURCE-CIDR", "NODE-PORT-TCP", "NODE-PORT-LOCAL-TCP", "NODE-PORT-UDP"),
        *("NODE-PORT-LOCAL-UDP", "NODE-PORT-SCTP-HASH", "NODE-PORT-LOCAL-SCTP-HASH", "IPVS-IPS"),
    }
)

_SET_NAME = 31
"""Letters that a set's name may have; kube-proxy cuts longer ones off."""

NFT_TABLE = "kube-proxy"
"""The name of kube-proxy's nftables tables, one of family ip and one of ip6."""

DUMMY_DEVICE = "kube-ipvs0"
"""Holds the addresses of all Services in ipvs mode."""


def is_chain(name: str) -> bool:
    """True if an iptables chain is kube-proxy's."""
    return name in _CHAINS or is_chain_of_service(name)


def is_chain_of_service(name: str) -> bool:
    """True if an iptables chain is one that kube-proxy made for a Service."""
    return name.startswith(_CHAINS_OF_SERVICES)


def _names_of_sets(prefix: str) -> dict[str, str]:
    return {(prefix + name)[:_SET_NAME]: name for name in _SETS}


SETS = {4: _names_of_sets("KUBE-"), 6: _names_of_sets("KUBE-6-")}
"""By family: the names of sets -> the same without the prefix, and not cut off."""


def is_set(name: str) -> bool:
    """True if an ipset is kube-proxy's."""
    return any(name in of_family for of_family in SETS.values())
