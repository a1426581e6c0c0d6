"""Check what ``--fast-path established`` would bypass. Pure.

Netfilter sees how a connection begins and ends, and a packet of each direction again and again, so
what drops or translates connections is no reason against it. It must not be used where each packet
counts: where it may be changed, where another program decides about it, or where packets are
limited. Rules that packets of established connections do not reach are left out: those for packets
in other states, and those after one that accepts all that is established. (Changes of SYNs, as
TCPMSS makes them, reach all SYNs.)

Policies that are enforced elsewhere than in netfilter forbid it, too.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from bpfsvc.doctor.check_routes import ipsec_obstacles, rule_obstacles
from bpfsvc.doctor.facts import POLICY_PINS, FastPathFacts
from bpfsvc.migration.kube_proxy import names
from bpfsvc.migration.kube_proxy.rules import RulesTable, chain_of, target_of

_FORWARDING_CHAINS = ("PREROUTING", "FORWARD", "POSTROUTING")
_DEVICES = {"cilium_": "Cilium", "antrea-gw": "Antrea", "ovn-k8s": "OVN-Kubernetes"}
"""How the interfaces of programs begin that do not enforce policies by netfilter -> their name."""

_DECIDES = frozenset({"NFQUEUE", "QUEUE"})
_CHANGES = frozenset({"DSCP", "TOS", "TTL", "HL", "ECN", "CLASSIFY", "TEE"})
_VERDICTS = frozenset({"ACCEPT", "RETURN", "DROP", "REJECT"})
_LIMIT = re.compile(r" -m (?:limit|hashlimit|quota|statistic|connbytes|rateest) ")
_STATES = re.compile(r"(!)? --(?:ct)?state ([A-Z,]+)")
_ACCEPTS_ESTABLISHED = re.compile(
    r"^-A \S+ -m (?:conntrack --ctstate|state --state) (?:[A-Z,]+,)?ESTABLISHED(?:,[A-Z,]+)?"
    r"(?: -m comment --comment (?:\"[^\"]*\"|\S+))? -j ACCEPT$"
)


def established_obstacles(facts: FastPathFacts) -> Iterator[str]:
    """Yield why it must not be used, the clearest reason first."""
    for prefix, who in _DEVICES.items():
        named = sorted(name for name in facts.devices if name.startswith(prefix))
        if named:
            yield f"{who} may enforce network policies here ({named[0]}), and not by netfilter"
    for pin in sorted(facts.pinned):
        yield f"{POLICY_PINS[pin]} may enforce network policies here, and not by netfilter"
    for flavour, table in facts.tables:
        yield from _each_packet(flavour, table)
    yield from facts.each_packet
    yield from rule_obstacles(facts)
    yield from ipsec_obstacles(facts)


def established_objections(facts: FastPathFacts) -> Iterator[str]:
    """Yield this, and last what cannot be checked."""
    yield from established_obstacles(facts)
    yield from facts.unseen
    if not facts.tracks:
        yield "netfilter tracks no connections here, so none is established there"


# -- iptables --


def _each_packet(flavour: str, table: RulesTable) -> Iterator[str]:
    """Yield the first rule by which each packet of an established connection counts."""
    waiting = [chain for chain in _FORWARDING_CHAINS if chain in table.policies]
    seen: set[str] = set()
    while waiting:
        chain = waiting.pop(0)
        if chain in seen or chain not in table.policies or names.is_chain(chain):
            continue
        seen.add(chain)
        for rule in table.rules:
            if chain_of(rule) != chain or not _sees_established(rule):
                continue
            if _ACCEPTS_ESTABLISHED.match(rule):
                break
            target = target_of(rule)
            if target in _DECIDES | _CHANGES or (target in _VERDICTS and _LIMIT.search(rule)):
                yield f"a rule in {flavour} has to see each packet: {rule}"
                return
            waiting.append(target)


def _sees_established(rule: str) -> bool:
    states = _STATES.search(rule)
    return not states or ("ESTABLISHED" in states[2].split(",")) != bool(states[1])


# -- nftables --

_NFT_DECIDES = frozenset({"queue", "dup", "fwd"})
_NFT_LIMITS = frozenset({"limit", "quota"})
_NFT_VERDICTS = frozenset({"accept", "drop", "reject", "return"})
_NFT_CALLS = frozenset({"jump", "goto"})


def nft_each_packet(listed: str, chains: Sequence[str]) -> Iterator[str]:
    """Yield the chains with such a rule in ``nft -j list table``, called from ``chains``.

    Raise ``ValueError``, ``KeyError`` or ``AttributeError`` if it is not understood.
    """
    rules: dict[str, list[Sequence[Mapping[str, Any]]]] = {}
    for each in json.loads(listed)["nftables"]:
        if "rule" in each:
            rules.setdefault(each["rule"]["chain"], []).append(each["rule"]["expr"])
    waiting, seen = list(chains), set[str]()
    while waiting:
        chain = waiting.pop(0)
        if chain in seen:
            continue
        seen.add(chain)
        for rule in rules.get(chain, ()):
            accepts, reaches = _nft_states(rule)
            if not reaches:
                continue
            if _nft_counts_each(rule):
                yield chain
                return
            if accepts:
                break
            # Which chains a map with a name calls is not asked.
            waiting += rules if _has_named_map(rule) else _nft_called(rule)


def _nft_states(rule: Sequence[Mapping[str, Any]]) -> tuple[bool, bool]:
    """Return whether a rule accepts all that is established, and whether that reaches it."""
    if not rule:
        return False, True
    match, verdict = rule[0].get("match"), rule[-1]
    vmap = rule[0].get("vmap", {})
    if vmap.get("key") == {"ct": {"key": "state"}} and not _has_named_map(rule):
        verdicts = {str(state): verdict for state, verdict in vmap["data"].get("set", ())}
        return "accept" in verdicts.get("established", {}), True
    for each in rule:
        found = each.get("match", {})
        if found.get("left") != {"ct": {"key": "state"}}:
            continue
        named = found["right"]
        named = named.get("set", ()) if isinstance(named, dict) else named
        has = "established" in ([named] if isinstance(named, str) else named)
        if has == (found["op"] == "!="):
            return False, False
        alone = found is match and len([one for one in rule if "counter" not in one]) == 2
        return has and alone and "accept" in verdict, True
    return False, True


def _nft_counts_each(rule: Sequence[Mapping[str, Any]]) -> bool:
    kinds = {kind for statement in rule for kind in statement}
    if kinds & _NFT_DECIDES or (kinds & _NFT_LIMITS and kinds & _NFT_VERDICTS):
        return True
    return any(_nft_changes(each["mangle"].get("key", {})) for each in rule if "mangle" in each)


def _nft_changes(key: Mapping[str, Any]) -> bool:
    """True for bytes of the packet but TCP's options (of a SYN), and for its place in a queue."""
    return "payload" in key or key.get("meta", {}).get("key") == "priority"


def _has_named_map(rule: Sequence[Mapping[str, Any]]) -> bool:
    return any(isinstance(each.get("vmap", {}).get("data"), str) for each in rule)


def _nft_called(rule: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return the chains that a rule calls, also by a map of verdicts in it."""
    found = [str(each[kind]["target"]) for each in rule for kind in _NFT_CALLS if kind in each]
    for each in rule:
        data = each.get("vmap", {}).get("data", {})
        pairs = data.get("set", ()) if isinstance(data, dict) else ()
        for pair in pairs:
            found += [str(pair[1][kind]["target"]) for kind in _NFT_CALLS if kind in pair[1]]
    return found
