"""Rules of iptables that name a destination before it is translated. Pure.

They are in ``raw`` and ``mangle``, reached from PREROUTING or, for the node's own packets, OUTPUT;
Calico writes its untracked and preDNAT policies there. In any chain a rule may match the original
destination by conntrack (``--ctorigdst``, ``--ctorigdstport``).
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

from bpfsvc.doctor.firewall_rules import Match, Network, PacketRule, network
from bpfsvc.migration.kube_proxy import names
from bpfsvc.migration.kube_proxy.rules import RulesTable, RuleWords, chain_of, target_of, words_of

_EARLY_TABLES = ("raw", "mangle")
_EARLY_CHAINS = ("PREROUTING", "OUTPUT")
_HARMLESS = frozenset({"CT", "NOTRACK"})
"""Targets that protect nothing; NodeLocal DNSCache has such rules for its addresses."""

_SET = re.compile(r"(! )?--match-set (\S+) (\S+)")
_PORTS = ("--dport", "--dports", "--ports", "--destination-port")
_IS_PORT = re.compile(r"(?:\w+:)?\d+(?:-\d+)?")
_DEEPEST = 16
"""Calls of chains within each other that the kernel allows."""


Sets = Mapping[str, Sequence[str]]
"""Sets of ipset, each with its members as ``ipset save`` prints them."""


def read_iptables(
    where: str, family: int, tables: Iterable[RulesTable], sets: Sets
) -> Iterator[PacketRule]:
    """Yield the rules; ``where`` names the flavour. A set that is not in ``sets`` is left out."""
    for table in tables:
        place = f"{where}, table {table.name}"
        calls: dict[str, list[str]] = {}
        for rule in table.rules:
            calls.setdefault(chain_of(rule), []).append(rule)
        if table.name in _EARLY_TABLES:
            for chain in _EARLY_CHAINS:
                walk = _Walk(table, calls, sets, f"{place}, {chain}", family)
                yield from walk.below(chain, ())
        for rule in table.rules:
            if "--ctorigdst" in rule and not names.is_chain(chain_of(rule)):
                matches = tuple(_original(words_of(rule)))
                found = PacketRule(place, rule, family, matches)
                if found.names_destination:
                    yield found


class _Walk(NamedTuple):
    """The rules that packets of one hook meet in a table; ``calls``: those of each chain."""

    table: RulesTable
    calls: Mapping[str, Sequence[str]]
    sets: Sets
    where: str
    family: int

    def below(
        self, chain: str, conditions: tuple[Match, ...], depth: int = 0
    ) -> Iterator[PacketRule]:
        """Yield the rules of a chain and of those that it calls."""
        for rule in self.calls.get(chain, ()) if depth <= _DEEPEST else ():
            target = target_of(rule)
            matches = (*conditions, _match_all(rule), *_sets(rule, self.sets))
            if target in self.table.policies:
                yield from self.below(target, matches, depth + 1)
            elif target not in _HARMLESS:
                found = PacketRule(self.where, rule, self.family, matches)
                if found.names_destination:
                    yield found


def _match_all(rule: str) -> Match:
    """Return the condition on address, protocol and port of one rule."""
    words = words_of(rule)
    ports = next((each for each in _PORTS if words.get(each)), "")
    protocol = "" if "-p" in words.negated else words.get("-p").upper()
    return Match(
        networks=_networks(words, "-d") if "-d" not in words.negated else None,
        ports=_ports(words.get(ports)) if ports and ports not in words.negated else None,
        protocols=frozenset({protocol} if protocol in ("TCP", "UDP", "SCTP", "UDPLITE") else ()),
    )


def _networks(words: RuleWords, option: str) -> tuple[Network, ...] | None:
    return (network(words.get(option)),) if words.get(option) else None


def _ports(text: str) -> tuple[tuple[int, int], ...]:
    """Return the ranges of ``80``, ``80:90`` or ``80,443,8000:8010``."""
    found = []
    for part in text.split(","):
        first, _, last = part.partition(":")
        found.append((int(first or 0), int(last or (65535 if ":" in part else first))))
    return tuple(found)


def _sets(rule: str, sets: Sets) -> Iterator[Match]:
    """Yield a condition for each set that has destinations: its addresses, and its ports."""
    for negation, name, directions in _SET.findall(rule):
        networks: list[Network] = []
        ports: list[tuple[int, int]] = []
        dimensions = directions.split(",")
        for member in sets.get(name, ()):
            for dimension, part in zip(dimensions, member.split(","), strict=False):
                if dimension == "dst" and _IS_PORT.fullmatch(part):
                    ports += _ports(part.rpartition(":")[2].replace("-", ":"))
                elif dimension == "dst":
                    networks.append(network(part))
        if networks or ports:
            yield Match(
                networks=tuple(networks) or None,
                ports=tuple(ports) or None,
                negated=bool(negation),
            )


def set_names(tables: Iterable[RulesTable]) -> set[str]:
    """Return the sets of destinations that rules name."""
    return {
        name
        for table in tables
        for rule in table.rules
        for _, name, directions in _SET.findall(rule)
        if "dst" in directions.split(",")
    }


def _original(words: RuleWords) -> Iterator[Match]:
    ports = words.get("--ctorigdstport")
    yield Match(
        networks=_networks(words, "--ctorigdst") if "--ctorigdst" not in words.negated else None,
        ports=_ports(ports) if ports and "--ctorigdstport" not in words.negated else None,
        original=True,
    )
