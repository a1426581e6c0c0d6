"""kube-proxy's rules for ``recorded/objects.json``: of 1.36 in two modes, and as 1.38 has them.

Recorded on the first node (192.168.50.11, fd50::11) of a lab with routed pods: 10.244.1.11 and
10.244.1.12 are its own pods, 10.244.2.11 and 10.244.2.12 the second node's; the same digits
in fd44::/16.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Literal, get_args

from bpfsvc.migration.decisions import Decision, Decisions, Treatment
from bpfsvc.migration.netfilter.iptables import read_tables
from bpfsvc.migration.netfilter.nftables import read_listing
from bpfsvc.migration.verify.iptables_rules import read_iptables
from bpfsvc.migration.verify.nftables_rules import read_nftables
from bpfsvc.migration.verify.rules import RuleSet
from tests.migration.values import by_text, treated
from tests.migration.verify import rules_of_1_38

RECORDED = Path(__file__).parent / "recorded"

Layout = Literal["iptables", "nftables", "nftables-1.38"]
LAYOUTS: tuple[Layout, ...] = get_args(Layout)

FILES = {
    "iptables": {4: RECORDED / "iptables.txt", 6: RECORDED / "ip6tables.txt"},
    "nftables": {4: RECORDED / "nftables-ip.json", 6: RECORDED / "nftables-ip6.json"},
}

LOCAL = ("10.244.1.11:8080", "10.244.1.12:8080")
REMOTE = ("10.244.2.11:8080", "10.244.2.12:8080")
ALL = (*LOCAL, *REMOTE)
"""Endpoints of this node, and of the other one."""

FORWARD, MASQUERADE = treated("forward", *ALL), treated("masquerade", *ALL)
REJECT = Treatment("reject")

IN_ALL_MODES: dict[str, tuple[str, tuple[Treatment, ...]]] = {
    "a cluster IP masquerades all but pods": (
        "10.96.0.10:80/TCP",
        (FORWARD, MASQUERADE, MASQUERADE),
    ),
    "so does its UDP port": ("10.96.0.10:53/UDP", (FORWARD, MASQUERADE, MASQUERADE)),
    "and an SCTP port": ("10.96.0.21:80/SCTP", (FORWARD, MASQUERADE, MASQUERADE)),
    "a NodePort masquerades everybody": ("nodeport:30011/TCP", (MASQUERADE,) * 3),
    "an external IP too": ("80.11.12.10:80/TCP", (MASQUERADE,) * 3),
    "a load balancer's address too": ("80.11.12.20:80/TCP", (MASQUERADE,) * 3),
}
"""A frontend, and what becomes of clients of each class: pods, the node, those outside."""


def objects() -> list[dict[str, Any]]:
    """Return the Services and EndpointSlices."""
    listed: list[dict[str, Any]] = json.loads((RECORDED / "objects.json").read_text())
    return listed


def text(layout: Layout, family: int = 4) -> str:
    """Return the rules as their tool printed them."""
    if layout == "nftables-1.38":
        return rules_of_1_38.rewritten(text("nftables", family), family)
    return FILES[layout][family].read_text()


def rule_set(layout: Layout, family: int = 4, printed: str = "") -> RuleSet:
    """Return the rules, or others that are given as text."""
    printed = printed or text(layout, family)
    if layout.startswith("nftables"):
        rules = read_nftables(read_listing(printed), family)
    else:
        rules = read_iptables("iptables-nft", family, read_tables(printed))
    assert rules is not None
    return rules


def decisions(layout: Layout, family: int = 4, printed: str = "") -> Decisions:
    """Return what the rules do."""
    return rule_set(layout, family, printed).decisions()


def decision(layout: Layout, frontend: str, printed: str = "") -> Decision:
    """Return what the rules of IPv4, or of IPv6 for such a frontend, do at one frontend."""
    family = 6 if frontend.startswith(("[", "nodeport6")) else 4
    return by_text(decisions(layout, family, printed))[frontend]
