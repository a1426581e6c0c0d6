"""kube-proxy's rules in iptables mode, from the text of ``iptables-save``. Pure.

kubernetes/kubernetes, ``pkg/proxy/iptables/proxier.go``: KUBE-SERVICES has a rule for each address,
its last one leads to KUBE-NODEPORTS; KUBE-FW- checks sources and KUBE-EXT- masquerades for
destinations outside of the cluster; KUBE-SVC- and KUBE-SVL- choose from all and from the node's own
endpoints; KUBE-SEP- translates. What has no endpoints is in the table filter.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any

from bpfsvc.base.address import endpoint_text, pack
from bpfsvc.migration.kube_proxy import names
from bpfsvc.migration.kube_proxy.rules import RulesTable, RuleWords, words_of
from bpfsvc.migration.verify.decisions import NODE, Frontend
from bpfsvc.migration.verify.ipvs_rules import is_of_ipvs
from bpfsvc.migration.verify.rules import EVERYONE, Rule, RuleSet, UnreadableRules

_SERVICES, _NODEPORTS, _EXTERNAL = "KUBE-SERVICES", "KUBE-NODEPORTS", "KUBE-EXTERNAL-SERVICES"
_OF_SERVICES = ("KUBE-SVC-", "KUBE-SVL-", "KUBE-EXT-", "KUBE-FW-", "KUBE-SEP-")
_FILTER = "filter "
"""Comes before the names of chains of the table filter, as nat has chains of these names too."""

_KNOWN = frozenset(
    {
        *("-A", "-s", "-d", "-p", "-i", "-j", "-g", "-m", "--comment", "--dport"),
        *("--src-type", "--dst-type", "--to-destination", "--reject-with"),
        *("--probability", "--mode", "--random", "--persistent"),
        *("--rcheck", "--seconds", "--reap", "--name", "--mask", "--rsource", "--set"),
        "--nfacct-name",
    }
)
_NAME = re.compile(r"(\S+/\S+?)(?:$| )")


def read_iptables(layout: str, family: int, tables: Iterable[RulesTable]) -> RuleSet | None:
    """Return kube-proxy's rules; None if it has none here. ``layout`` names the flavour."""
    by_name = {table.name: table for table in tables}
    nat, filters = by_name.get("nat"), by_name.get("filter")
    if nat is None or _SERVICES not in nat.policies or is_of_ipvs(nat):
        return None
    reader = _Reader(family)
    reader.read(nat.rules, "", (_SERVICES, _NODEPORTS, *_OF_SERVICES))
    reader.read(filters.rules if filters else (), _FILTER, (_SERVICES, _EXTERNAL))
    chains = {name: () for name in nat.policies if names.is_chain(name)}
    ends = (_FILTER + _SERVICES, _FILTER + _EXTERNAL)
    return RuleSet(
        layout,
        family,
        {**chains, **dict.fromkeys(ends, ()), **reader.chains()},
        firewall=(),
        services=_SERVICES,
        filters=ends,
        names=reader.names,
        nodeports=frozenset(reader.nodeports) or None,
    )


class _Reader:
    """Turns lines into rules. Those of one frontend alone go into the look-up of their chain."""

    def __init__(self, family: int) -> None:
        self._node = NODE[family]
        self._rules: dict[str, list[Rule]] = {}
        self._tables: dict[str, dict[Frontend, tuple[Rule, ...]]] = {}
        self.names: dict[Frontend, str] = {}
        self.nodeports: set[str] = set()

    def chains(self) -> dict[str, tuple[Rule, ...]]:
        """Return the rules of each chain, its look-up first."""
        return {
            chain: (*((Rule(table=table),) if (table := self._tables.get(chain)) else ()), *rules)
            for chain, rules in self._rules.items()
        }

    def read(self, lines: Iterable[str], prefix: str, wanted: tuple[str, ...]) -> None:
        """Read the rules of chains whose names begin as ``wanted``."""
        for line in lines:
            chain = line.split(" ", 2)[1]
            if chain.startswith(wanted):
                self._read_one(words_of(line), line, chain, prefix)

    def _read_one(self, words: RuleWords, line: str, chain: str, prefix: str) -> None:
        rules = self._rules.setdefault(prefix + chain, [])
        if words.get("-d").startswith("127.") or not (words.get("-j") or words.get("-g")):
            return  # NodePorts at loopback addresses have another rule for all addresses; a remark
        rule = _rule(words, chain, line)
        if rule is None:
            return
        to = self._frontend(words, chain)
        if chain in (_SERVICES, _NODEPORTS, _EXTERNAL) and to.port:
            table = self._tables.setdefault(prefix + chain, {})
            table[to] = (*table.get(to, ()), rule)
            named = _NAME.match(words.get("--comment"))
            self.names.setdefault(to, named[1] if named else "")
            return
        if rule.targets == (_NODEPORTS,) and words.get("-d") and "-d" not in words.negated:
            self.nodeports.add(words.get("-d").partition("/")[0])
        if to.address:
            rule = rule._replace(address=frozenset({to.address}))
        rules.append(rule._replace(port=to.port, protocol=to.protocol))

    def _frontend(self, words: RuleWords, chain: str) -> Frontend:
        to_node = (
            words.get("--dst-type") == "LOCAL"
            or _NODEPORTS in (chain, words.get("-j"))
            or "-d" in words.negated
        )
        address = self._node if to_node else words.get("-d").partition("/")[0]
        return Frontend(address, int(words.get("--dport") or 0), words.get("-p").upper())


def _rule(words: RuleWords, chain: str, line: str) -> Rule | None:
    """Return what a rule does, and for whom; None for one that matters to no client here."""
    if unknown := words.options.keys() - _KNOWN:
        raise UnreadableRules(
            f"kube-proxy's rule {line!r} has {sorted(unknown)[0]}, which bpfsvc does not know"
        )
    target = words.get("-j") or words.get("-g")
    if chain.startswith("KUBE-SEP-") and target == names.MARK_MASQUERADE:
        return None  # hairpin
    more: dict[str, Any] = {"clients": _clients(words, chain)}
    if chain.startswith("KUBE-FW-") and words.get("-s"):
        more["sources"] = (words.get("-s"),)
    if "--probability" in words.options or "--rcheck" in words.options:
        more["surely"] = False
        more["affinity"] = int(words.get("--seconds") or 0)
    if target == "DNAT":
        address, _, port = words.get("--to-destination").rpartition(":")
        more["backends"] = (endpoint_text(pack(address.strip("[]")), int(port)),)
    elif target in ("DROP", "REJECT"):
        more["verdict"] = target.lower()
    elif target == names.MARK_MASQUERADE:
        more["mark"] = True
    elif target.startswith("KUBE-"):
        more["targets"] = (target,)
        more["returns"] = not words.get("-g")
    elif target not in ("ACCEPT", "RETURN"):
        raise UnreadableRules(f"kube-proxy's rule {line!r} has an unknown target")
    return Rule(**more)


def _clients(words: RuleWords, chain: str) -> frozenset[str]:
    found = EVERYONE
    if words.get("--src-type") == "LOCAL":
        found &= {"node"}
    for option in ("-s", "-i"):
        # The detector of local pods; a firewall's sources are of any class.
        if words.get(option) and not chain.startswith("KUBE-FW-"):
            found &= {"node", "other"} if option in words.negated else {"pod"}
    return found
