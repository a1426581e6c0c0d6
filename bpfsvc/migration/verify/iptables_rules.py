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

from bpfsvc.base.address import pack
from bpfsvc.base.protocols import PROTOCOLS
from bpfsvc.migration.decisions import ANY_NODE_ADDRESS
from bpfsvc.migration.kube_proxy import names
from bpfsvc.migration.netfilter.iptables import RulesTable, RuleWords, chain_of, words_of
from bpfsvc.migration.verify.ipvs_rules import is_of_ipvs
from bpfsvc.migration.verify.rules import EVERYONE, Rule, RuleSet, UnreadableRules, pods_or_others
from bpfsvc.services.entries import Frontend

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
    """Turns lines into rules. Rules of a single frontend go into the look-up of their chain."""

    def __init__(self, family: int) -> None:
        self._node = ANY_NODE_ADDRESS[family]
        self._rules: dict[str, list[Rule]] = {}
        self._tables: dict[str, dict[Frontend, tuple[Rule, ...]]] = {}
        self.names: dict[Frontend, str] = {}
        self.nodeports: set[bytes] = set()

    def chains(self) -> dict[str, tuple[Rule, ...]]:
        """Return the rules of each chain, its look-up first."""
        return {
            chain: (*((Rule(table=table),) if (table := self._tables.get(chain)) else ()), *rules)
            for chain, rules in self._rules.items()
        }

    def read(self, lines: Iterable[str], prefix: str, wanted: tuple[str, ...]) -> None:
        """Read the rules of chains with a name that begins as one of ``wanted``."""
        for line in lines:
            chain = chain_of(line)
            if chain.startswith(wanted):
                self._read_rule(words_of(line), line, chain, prefix)

    def _read_rule(self, words: RuleWords, line: str, chain: str, prefix: str) -> None:
        rules = self._rules.setdefault(prefix + chain, [])
        if words.get("-d").startswith("127.") or not (words.get("-j") or words.get("-g")):
            return  # NodePorts at loopback addresses have another rule for all addresses; a remark
        rule = _rule(words, chain, line)
        if rule is None:
            return
        address = self._address(words, chain)
        port, protocol = int(words.get("--dport") or 0), _protocol(words, line)
        if chain in (_SERVICES, _NODEPORTS, _EXTERNAL) and port and address:
            frontend = Frontend(address, port, protocol)
            table = self._tables.setdefault(prefix + chain, {})
            table[frontend] = (*table.get(frontend, ()), rule)
            named = _NAME.match(words.get("--comment"))
            self.names.setdefault(frontend, named[1] if named else "")
            return
        if rule.targets == (_NODEPORTS,) and words.get("-d") and "-d" not in words.negated:
            self.nodeports.add(_destination(words))
        if address:
            rule = rule._replace(address=frozenset({address}))
        rules.append(rule._replace(port=port, protocol=protocol))

    def _address(self, words: RuleWords, chain: str) -> bytes | None:
        """Return the destination of a rule, None if it has none."""
        to_node = (
            words.get("--dst-type") == "LOCAL"
            or _NODEPORTS in (chain, words.get("-j"))
            or "-d" in words.negated
        )
        if to_node:
            return self._node
        return _destination(words) if words.get("-d") else None


def _destination(words: RuleWords) -> bytes:
    return pack(words.get("-d").partition("/")[0])


def _protocol(words: RuleWords, line: str) -> int:
    name = words.get("-p").upper()
    if name and name not in PROTOCOLS:
        raise UnreadableRules(f"kube-proxy's rule {line!r} has an unknown protocol")
    return PROTOCOLS[name] if name else 0


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
        more["backends"] = ((pack(address.strip("[]")), int(port)),)
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
    # A firewall's sources are of any class.
    clients = EVERYONE if chain.startswith("KUBE-FW-") else pods_or_others(words)
    return clients & {"node"} if words.get("--src-type") == "LOCAL" else clients
