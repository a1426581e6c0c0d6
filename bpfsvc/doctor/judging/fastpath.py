"""May packets go past the stack on this node? Not where something there would have stopped them.

The fast path skips netfilter, programs that others attached, queues, and IPsec. Programs and
queues belong to one interface, and the agent leaves those interfaces out. The rest concerns the
whole node, and one sign of it is enough:

* Whoever enforces network policies: Calico and Canal (interfaces ``cali...``, chains ``cali-...``;
  projectcalico/calico, felix/rules), kube-router (``KUBE-POD-FW-``, ``KUBE-NWPLCY-``,
  ``KUBE-ROUTER-``; cloudnativelabs/kube-router, pkg/controllers/netpol), Weave (``WEAVE-NPC``),
  Azure (``AZURE-NPM``), Antrea, Cilium, OVN-Kubernetes, the AWS agent (its pinned map of
  connections; aws/aws-network-policy-agent, pkg/ebpf). They may have no rule yet, and one soon.
* Rules in the way of forwarded packets that drop, reject or divert, and policies that drop. A rule
  against packets that conntrack finds invalid is none: it never sees those of the fast path.
* Chains of nftables in that way: what their rules do is not read.
* IPsec policies: packets would leave in clear text.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from bpfsvc.doctor.finding import Finding, note, ok
from bpfsvc.doctor.sightings import Chain, Guards
from bpfsvc.takeover import hold, names
from bpfsvc.takeover.rules import Table, chain_of, target_of

SUBJECT = "fast path"

_DEVICES = {
    "cali": "Calico",
    "cilium_": "Cilium",
    "antrea-gw": "Antrea",
    "ovn-k8s": "OVN-Kubernetes",
}
"""How the interfaces begin of those who enforce policies."""

_CHAINS = {
    "cali-": "Calico",
    "KUBE-POD-FW-": "kube-router",
    "KUBE-NWPLCY-": "kube-router",
    "KUBE-ROUTER-": "kube-router",
    "WEAVE-NPC": "Weave",
    "AZURE-NPM": "Azure's network policy manager",
    "ANTREA-": "Antrea",
    "CILIUM_": "Cilium",
}

POLICY_PINS = {"globals/aws/maps/global_aws_conntrack_map": "the AWS network policy agent"}
"""What is pinned below the bpf file system, and by whom."""

_WAYS = ("PREROUTING", "FORWARD", "POSTROUTING")
"""Chains that a forwarded packet passes."""

_STOPS = frozenset({"DROP", "REJECT", "NFQUEUE", "QUEUE", "TPROXY", "SYNPROXY"})

_INVALID = re.compile(r" --(?:ct)?state INVALID(?: |$)")

_IPTABLES = frozenset({"filter", "mangle", "nat", "raw", "security"})
"""Tables of nftables that iptables makes: their rules are seen through it."""

_OWN_TABLES = frozenset({names.NFT_TABLE, hold.TABLE})


def judge(guards: Guards) -> Iterator[Finding]:
    """Say whether ``--fast-path`` could be used."""
    all_doubts = list(doubts(guards))
    for text in all_doubts:
        yield note(SUBJECT, f"--fast-path would be declined: {text}")
    if not all_doubts:
        yield ok(SUBJECT, "nothing is seen that --fast-path would pass by")


def doubts(guards: Guards) -> Iterator[str]:
    """Give what speaks against it, the plainest first, and last what could not be seen."""
    yield from found(guards)
    yield from guards.unseen


def found(guards: Guards) -> Iterator[str]:
    """Give what was seen that speaks against it."""
    yield from _enforcers(guards)
    for tool, table in guards.tables:
        yield from _of_table(tool, table)
    for chain in guards.chains:
        if chain.table not in _OWN_TABLES and not _is_of_iptables(chain):
            yield (
                f"nftables looks at forwarded packets in {chain.family} {chain.table} {chain.name}"
            )
    if guards.ipsec:
        yield f"{guards.ipsec} IPsec policies may have to encrypt packets"


def _enforcers(guards: Guards) -> Iterator[str]:
    told = set()
    chains = {name for _, table in guards.tables for name in table.policies}
    for signs, seen in ((_DEVICES, guards.devices), (_CHAINS, frozenset(chains))):
        for prefix, who in signs.items():
            named = sorted(name for name in seen if name.startswith(prefix))
            if named and who not in told:
                told.add(who)
                yield f"{who} may enforce network policies here ({named[0]})"
    for pin in sorted(guards.pinned):
        yield f"{POLICY_PINS[pin]} may enforce network policies here"


def _of_table(tool: str, table: Table) -> Iterator[str]:
    for way in _WAYS:
        if table.drops(way):
            yield f"the policy of {way} in {tool} drops what no rule accepts"
    for chain in _reached(table):
        for rule in table.rules:
            if chain_of(rule) == chain and target_of(rule) in _STOPS and not _INVALID.search(rule):
                yield f"a rule in {tool} stops packets: {rule}"
                return


def _reached(table: Table) -> list[str]:
    """Give the chains that a forwarded packet may pass, but kube-proxy's: we are in its place."""
    calls: dict[str, list[str]] = {}
    for rule in table.rules:
        calls.setdefault(chain_of(rule), []).append(target_of(rule))
    waiting, seen = [way for way in _WAYS if way in table.policies], []
    while waiting:
        chain = waiting.pop(0)
        if chain in seen or chain not in table.policies or names.is_chain(chain):
            continue
        seen.append(chain)
        waiting += calls.get(chain, ())
    return seen


def _is_of_iptables(chain: Chain) -> bool:
    return chain.family in ("ip", "ip6") and chain.table in _IPTABLES and chain.name in _WAYS
