"""Rules of iptables and nftables that drop forwarded packets, as those to endpoints. Pure.

Packets to Services are translated before FORWARD, so a rule there sees the endpoint. Only rules
that look at nothing but destination, protocol and interfaces are taken, and rules that accept
before them are respected: a rule that depends on marks, states or sources may never see such a
packet.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

from bpfsvc.doctor.check.early_rules import NftReader, destination_match
from bpfsvc.doctor.facts import DroppingRule, Match, PacketRule
from bpfsvc.migration.netfilter.iptables import RulesTable, target_of, without_comments, words_of
from bpfsvc.migration.netfilter.nftables import Chain, Expressions, Listing, called_chains

_TABLES = ("mangle", "filter")
_FORWARD = "FORWARD"
_DROPPING = frozenset({"DROP", "REJECT"})
_DEEPEST = 16

_UNDERSTOOD = frozenset(
    {"-A", "-d", "-p", "-m", "-j", "-g", "-i", "-o"}
    | {"--dport", "--dports", "--ports", "--destination-port", "--reject-with"}
)
"""Options of rules that are taken for drops."""

_ANYTHING = Match()


def dropping_in_iptables(
    where: str, tool: str, family: int, tables: Iterable[RulesTable]
) -> Iterator[DroppingRule]:
    """Yield the rules; ``where`` names the flavour, ``tool`` is its command."""
    for table in tables:
        if table.name in _TABLES:
            walk = _Walk(table, table.by_chain(), where, tool, family)
            yield from walk.below(_FORWARD, ())


class _Walk(NamedTuple):
    """The rules that forwarded packets meet in a table."""

    table: RulesTable
    rules: Mapping[str, Sequence[str]]
    where: str
    tool: str
    family: int

    def below(
        self, chain: str, conditions: tuple[Match, ...], depth: int = 0
    ) -> Iterator[DroppingRule]:
        for line in self.rules.get(chain, ()) if depth <= _DEEPEST else ():
            words, target = words_of(without_comments(line)), target_of(line)
            if words.negated or not words.options.keys() <= _UNDERSTOOD:
                if target == "ACCEPT" and "--ctstate" not in words.options:
                    return  # of what follows, it is not known what comes there
                continue
            match = destination_match(words)
            matches = (*conditions, match)
            if target in self.table.policies:
                yield from self.below(target, matches, depth + 1)
            elif target in _DROPPING:
                name = f"{self.where}, table {self.table.name}, {chain}"
                delete = f"{self.tool} -w -t {self.table.name} -D {line.removeprefix('-A ')}"
                yield DroppingRule(PacketRule(name, line, self.family, matches), delete)
            elif target in ("ACCEPT", "RETURN") and (match == _ANYTHING or target == "ACCEPT"):
                return


_FAMILIES = {"ip": 4, "ip6": 6, "inet": 0}
_NFT_DROPPING = frozenset({"drop", "reject"})
_STATEMENTS = frozenset({"counter", "log", "drop", "reject", "jump", "goto"})


def dropping_in_nftables(listing: Listing, text: str) -> Iterator[DroppingRule]:
    """Yield the rules of one table; ``text`` is the output of ``nft -a list table``."""
    reader = NftReader.of(listing, text)
    for chain in listing.chains:
        if chain.hook == "forward" and chain.family in _FAMILIES:
            yield from _below(reader, chain, chain.name, ())


def _below(
    reader: NftReader, base: Chain, chain: str, conditions: tuple[Match, ...], depth: int = 0
) -> Iterator[DroppingRule]:
    for expressions, handle in reader.listing.rules.get(chain, ()) if depth <= _DEEPEST else ():
        kinds = {kind for expression in expressions for kind in expression}
        if not _is_understood(reader, expressions):
            if "accept" in kinds and not _looks_at_state(expressions):
                return
            continue
        matches = (*conditions, *reader.matches(expressions))
        for target in called_chains(expressions):
            yield from _below(reader, base, target, matches, depth + 1)
        if kinds & _NFT_DROPPING:
            where = f"nftables: {base.family} {base.table}, {chain}"
            rule = PacketRule(where, reader.texts.get(handle, ""), _FAMILIES[base.family], matches)
            names = shlex.join((base.family, base.table, chain))
            yield DroppingRule(rule, f"nft delete rule {names} handle {handle}")


def _is_understood(reader: NftReader, expressions: Expressions) -> bool:
    """True if a rule only looks at the destination, and drops, or calls a chain."""
    for expression in expressions:
        (kind,) = expression
        if kind == "match":
            match = expression["match"]
            is_known = match["op"] in ("==", "in") and any(reader.matches((expression,)))
            if not is_known and not _looks_at_interface(match["left"]):
                return False
        elif kind not in _STATEMENTS:
            return False
    return True


def _looks_at_interface(left: object) -> bool:
    meta = left.get("meta") if isinstance(left, Mapping) else None
    return isinstance(meta, Mapping) and str(meta.get("key")) in ("iifname", "oifname", "nfproto")


def _looks_at_state(expressions: Expressions) -> bool:
    return any(
        isinstance(left := expression.get("match", {}).get("left"), Mapping)
        and left.get("ct", {}).get("key") == "state"
        for expression in expressions
    )
