"""Check what ``--fast-path established`` would bypass. Pure.

Netfilter sees how a connection begins and ends, and a packet of each direction again and again. So
rules that drop or translate whole connections do not forbid it. It must not be used where each
packet counts: where packets may be changed or limited, or another program decides about each.
Rules that packets of established connections do not reach are left out: rules for packets in other
states, and rules after one that accepts all that is established. (Changes of SYNs, as TCPMSS makes
them, reach all SYNs.)

Policies that are enforced elsewhere than in netfilter forbid it, too.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import NamedTuple

from bpfsvc.base.texts import count_text
from bpfsvc.doctor.facts import POLICY_PINS, FastPathFacts
from bpfsvc.migration.kube_proxy import names
from bpfsvc.migration.netfilter.iptables import RulesTable, reachable, states_of, target_of
from bpfsvc.migration.netfilter.nftables import (
    Expressions,
    Json,
    Listing,
    called_chains,
    has_named_map,
)

_FORWARDING_CHAINS = ("PREROUTING", "FORWARD", "POSTROUTING")
_DEVICES = {"cilium_": "Cilium", "antrea-gw": "Antrea", "ovn-k8s": "OVN-Kubernetes"}
"""Prefixes of interfaces -> programs that do not enforce policies by netfilter."""

_DECIDES = frozenset({"NFQUEUE", "QUEUE"})
_CHANGES = frozenset({"DSCP", "TOS", "TTL", "HL", "ECN", "CLASSIFY", "TEE"})
_VERDICTS = frozenset({"ACCEPT", "RETURN", "DROP", "REJECT"})
_LIMIT = re.compile(r" -m (?:limit|hashlimit|quota|statistic|connbytes|rateest) ")
_ACCEPTS_ESTABLISHED = re.compile(
    r"^-A \S+ -m (?:conntrack --ctstate|state --state) (?:[A-Z,]+,)?ESTABLISHED(?:,[A-Z,]+)?"
    r"(?: -m comment --comment (?:\"[^\"]*\"|\S+))? -j ACCEPT$"
)


def established_obstacles(facts: FastPathFacts) -> Iterator[str]:
    """Yield why the mode must not be used, the clearest reason first."""
    for prefix, program in _DEVICES.items():
        named = sorted(name for name in facts.devices if name.startswith(prefix))
        if named:
            yield f"{program} may enforce network policies here ({named[0]}), and not by netfilter"
    for pin in sorted(facts.pinned):
        yield f"{POLICY_PINS[pin]} may enforce network policies here, and not by netfilter"
    for flavour, table in facts.tables:
        if rule := _each_packet(table):
            yield f"a rule in {flavour} has to see each packet: {rule}"
    yield from facts.each_packet
    yield from rule_obstacles(facts)
    yield from ipsec_obstacles(facts)


def established_objections(facts: FastPathFacts) -> Iterator[str]:
    """Yield the obstacles, and last what cannot be checked."""
    yield from established_obstacles(facts)
    yield from facts.unseen
    if not facts.tracks:
        yield "netfilter tracks no connections here, so none is established there"


def rule_obstacles(facts: FastPathFacts) -> Iterator[str]:
    """Yield the route rules that packets would not follow."""
    for rule in facts.route_rules:
        yield f"a route rule asks for more than addresses: {rule}"


def ipsec_obstacles(facts: FastPathFacts) -> Iterator[str]:
    """Yield that the stack would encrypt packets, and the fast path does not."""
    if facts.ipsec:
        yield (
            f"{count_text(facts.ipsec, 'IPsec policy', 'IPsec policies')} may apply,"
            " and packets would leave unencrypted"
        )


class _Step(NamedTuple):
    """A rule that packets of established connections reach.

    ``counts``: the rule has to see each packet. ``accepts``: it accepts all that is established.
    """

    counts: bool
    accepts: bool
    calls: Iterable[str]
    text: str


def _first_that_counts(chains: Iterable[str], steps: Callable[[str], Iterator[_Step]]) -> str:
    """Return the text of a rule that has to see each packet, "" without one.

    ``steps(chain)`` yields the rules of a chain in their order.
    """

    def before_accepted(chain: str) -> Iterator[_Step]:
        for step in steps(chain):
            if step.accepts and not step.counts:
                return
            yield step

    def called(chain: str) -> Iterator[str]:
        for step in before_accepted(chain):
            yield from step.calls

    for chain in reachable(chains, called):
        for step in before_accepted(chain):
            if step.counts:
                return step.text
    return ""


# -- iptables --


def _each_packet(table: RulesTable) -> str:
    """Return the first rule that has to see each packet of a connection, or ""."""
    rules = table.by_chain()

    def steps(chain: str) -> Iterator[_Step]:
        for rule in rules.get(chain, ()) if not names.is_chain(chain) else ():
            if _sees_established(rule):
                target = target_of(rule)
                limits = target in _VERDICTS and _LIMIT.search(rule) is not None
                accepts = _ACCEPTS_ESTABLISHED.match(rule) is not None
                yield _Step(target in _DECIDES | _CHANGES or limits, accepts, [target], rule)

    return _first_that_counts(_FORWARDING_CHAINS, steps)


def _sees_established(rule: str) -> bool:
    states = states_of(rule)
    return not states or ("ESTABLISHED" in states) != ("!" in states)


# -- nftables --

_NFT_DECIDES = frozenset({"queue", "dup", "fwd"})
_NFT_LIMITS = frozenset({"limit", "quota"})
_NFT_VERDICTS = frozenset({"accept", "drop", "reject", "return"})
_CT_STATE = {"ct": {"key": "state"}}


def nft_each_packet(listing: Listing, chains: Iterable[str]) -> str:
    """Return a chain with such a rule, called from ``chains``; "" without one.

    Raise one of ``NOT_UNDERSTOOD`` if the rules are not understood.
    """

    def steps(chain: str) -> Iterator[_Step]:
        for rule in listing.rules.get(chain, ()):
            accepts, reaches = _nft_states(rule.expressions)
            if reaches:
                # The chains that a map with a name calls are not looked up: all are taken.
                named = has_named_map(rule.expressions)
                calls = listing.rules if named else called_chains(rule.expressions)
                yield _Step(_nft_counts_each(rule.expressions), accepts, calls, chain)

    return _first_that_counts(chains, steps)


def _nft_states(rule: Expressions) -> tuple[bool, bool]:
    """Return if a rule accepts all that is established, and if established packets reach it."""
    if not rule:
        return False, True
    match, verdict = rule[0].get("match"), rule[-1]
    vmap = rule[0].get("vmap", {})
    if vmap.get("key") == _CT_STATE and not has_named_map(rule):
        verdicts = {str(state): verdict for state, verdict in vmap["data"].get("set", ())}
        return "accept" in verdicts.get("established", {}), True
    for expression in rule:
        condition = expression.get("match", {})
        if condition.get("left") != _CT_STATE:
            continue
        states = condition["right"]
        states = states.get("set", ()) if isinstance(states, dict) else states
        has = "established" in ([states] if isinstance(states, str) else states)
        if has == (condition["op"] == "!="):
            return False, False
        alone = condition is match and sum("counter" not in other for other in rule) == 2
        return has and alone and "accept" in verdict, True
    return False, True


def _nft_counts_each(rule: Expressions) -> bool:
    kinds = {kind for statement in rule for kind in statement}
    if kinds & _NFT_DECIDES or (kinds & _NFT_LIMITS and kinds & _NFT_VERDICTS):
        return True
    changes = [statement["mangle"] for statement in rule if "mangle" in statement]
    return any(_nft_changes(change.get("key", {})) for change in changes)


def _nft_changes(key: Mapping[str, Json]) -> bool:
    """True for bytes of the packet but TCP's options (of a SYN), and for its place in a queue."""
    return "payload" in key or key.get("meta", {}).get("key") == "priority"
