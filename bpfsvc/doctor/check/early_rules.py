"""Rules of iptables and nftables that name a destination before it is translated. Pure.

* iptables: rules in ``raw`` and ``mangle``, reached from PREROUTING or, for the node's own packets,
  OUTPUT. Calico writes its untracked and preDNAT policies there.
* nftables: chains at the hooks ingress and prerouting, and at output for the node's own packets, of
  a priority before DNAT; and chains that these call.

In any chain a rule may match conntrack's original destination (``--ctorigdst``,
``--ctorigdstport``; ``ct original daddr``, ``ct original proto-dst``).
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import NamedTuple

from bpfsvc.base.address import pack_network
from bpfsvc.base.networks import Network, bits_of, contains
from bpfsvc.doctor.facts import Match, PacketRule
from bpfsvc.migration.kube_proxy import names
from bpfsvc.migration.netfilter.iptables import RulesTable, RuleWords, chain_of, target_of, words_of
from bpfsvc.migration.netfilter.nftables import (
    Chain,
    Expressions,
    Json,
    Listing,
    called_chains,
    flat_values,
)

_DEEPEST = 16
"""Calls of chains within each other that the kernel allows."""

_TRANSPORTS = frozenset({"TCP", "UDP", "SCTP", "UDPLITE"})


def _networks(text: str) -> tuple[Network, ...]:
    """Return the network of an address or a CIDR; () for a mask with holes."""
    with suppress(ValueError):
        address, mask = pack_network(text)
        return (Network(address, bits_of(mask)),)
    return ()


# -- iptables --

_EARLY_TABLES = ("raw", "mangle")
_EARLY_CHAINS = ("PREROUTING", "OUTPUT")
_HARMLESS = frozenset({"CT", "NOTRACK"})
"""Targets that protect nothing; NodeLocal DNSCache has such rules for its addresses."""

_SET = re.compile(r"(! )?--match-set (\S+) (\S+)")
_PORTS = ("--dport", "--dports", "--ports", "--destination-port")
_IS_PORT = re.compile(r"(?:\w+:)?\d+(?:-\d+)?")

Sets = Mapping[str, Sequence[str]]
"""Sets of ipset, each with its members as ``ipset save`` prints them."""


def read_iptables(
    where: str, family: int, tables: Iterable[RulesTable], sets: Sets
) -> Iterator[PacketRule]:
    """Yield the rules; ``where`` names the flavour. A set that is not in ``sets`` is left out."""
    for table in tables:
        in_table = f"{where}, table {table.name}"
        for chain in _EARLY_CHAINS if table.name in _EARLY_TABLES else ():
            walk = _Walk(table, table.by_chain(), sets, f"{in_table}, {chain}", family)
            yield from walk.below(chain, ())
        for line in table.rules:
            if "--ctorigdst" in line and not names.is_chain(chain_of(line)):
                words = words_of(line)
                match = _match(words, "--ctorigdst", "--ctorigdstport")
                rule = PacketRule(in_table, line, family, (match._replace(original=True),))
                if rule.names_destination:
                    yield rule


class _Walk(NamedTuple):
    """The rules that packets of one hook meet in a table; ``rules``: by chain."""

    table: RulesTable
    rules: Mapping[str, Sequence[str]]
    sets: Sets
    where: str
    family: int

    def below(
        self, chain: str, conditions: tuple[Match, ...], depth: int = 0
    ) -> Iterator[PacketRule]:
        """Yield the rules of a chain and of the chains that it calls."""
        for line in self.rules.get(chain, ()) if depth <= _DEEPEST else ():
            target, words = target_of(line), words_of(line)
            matches = (*conditions, destination_match(words), *_in_sets(line, self.sets))
            if target in self.table.policies:
                yield from self.below(target, matches, depth + 1)
            elif target not in _HARMLESS:
                rule = PacketRule(self.where, line, self.family, matches)
                if rule.names_destination:
                    yield rule


def destination_match(words: RuleWords) -> Match:
    """Return what a rule of iptables asks of the destination and of the protocol."""
    return _match(words, "-d", next((option for option in _PORTS if words.get(option)), ""))


def _match(words: RuleWords, address: str, ports: str) -> Match:
    """Return the condition on protocol, address and ports; the options that have the latter two."""
    protocol = "" if "-p" in words.negated else words.get("-p").upper()
    has_address = words.get(address) and address not in words.negated
    has_ports = words.get(ports) and ports not in words.negated
    return Match(
        networks=_networks(words.get(address)) if has_address else None,
        ports=_port_ranges(words.get(ports)) if has_ports else None,
        protocols=frozenset({protocol} & _TRANSPORTS),
    )


def _port_ranges(text: str) -> tuple[tuple[int, int], ...]:
    """Return the ranges of ``80``, ``80:90`` or ``80,443,8000:8010``."""
    ranges = []
    for part in text.split(","):
        first, _, last = part.partition(":")
        ranges.append((int(first or 0), int(last or (65535 if ":" in part else first))))
    return tuple(ranges)


def _in_sets(line: str, sets: Sets) -> Iterator[Match]:
    """Yield a condition for each set that has destinations: its addresses, and its ports."""
    for negation, name, directions in _SET.findall(line):
        networks: list[Network] = []
        ports: list[tuple[int, int]] = []
        dimensions = directions.split(",")
        for member in sets.get(name, ()):
            for dimension, part in zip(dimensions, member.split(","), strict=False):
                if dimension == "dst" and _IS_PORT.fullmatch(part):
                    ports += _port_ranges(part.rpartition(":")[2].replace("-", ":"))
                elif dimension == "dst":
                    networks += _networks(part)
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
        for line in table.rules
        for _, name, directions in _SET.findall(line)
        if "dst" in directions.split(",")
    }


# -- nftables --

_FAMILIES = {"ip": 4, "ip6": 6, "inet": 0, "netdev": 0, "bridge": 0}
_DNAT = -100
"""The priority of kube-proxy's chains that translate (NF_IP_PRI_NAT_DST)."""

_EARLY_HOOKS = ("ingress", "prerouting", "output")
_ENDS = frozenset(
    {"accept", "drop", "reject", "return", "vmap", "queue", "mangle", "tproxy", "log", "counter"}
)
"""What a rule may do to a packet, and would not do to a translated one."""

_HANDLES = re.compile(r"^\t\t(\S.*?) # handle (\d+)$", re.MULTILINE)


def read_nftables(listing: Listing, text: str) -> Iterator[PacketRule]:
    """Yield the rules of one table; ``text`` is the output of ``nft -a list table``."""
    reader = NftReader.of(listing, text)
    for chain in listing.chains:
        family = _FAMILIES.get(chain.family, 0)
        where = f"nftables: {chain.family} {chain.table}, {chain.name}"
        if _is_early(chain):
            yield from reader.below(chain.name, where, family, ())
        else:
            yield from reader.original(chain.name, where, family)


def _is_early(chain: Chain) -> bool:
    """True if the kernel calls a chain before netfilter's DNAT."""
    early = chain.hook == "ingress" or chain.priority < _DNAT
    return chain.hook in _EARLY_HOOKS and early


class NftReader(NamedTuple):
    """One table; ``texts``: its rules as nft prints them, by handle."""

    listing: Listing
    texts: Mapping[int, str]

    @classmethod
    def of(cls, listing: Listing, text: str) -> NftReader:
        """Return the reader of a table; ``text`` is the output of ``nft -a list table``."""
        return cls(listing, {int(handle): line for line, handle in _HANDLES.findall(text)})

    def below(
        self, chain: str, where: str, family: int, conditions: tuple[Match, ...], depth: int = 0
    ) -> Iterator[PacketRule]:
        """Yield the rules of a chain and of the chains that it calls."""
        for expressions, handle in self.listing.rules.get(chain, ()) if depth <= _DEEPEST else ():
            matches = (*conditions, *self.matches(expressions))
            for target in called_chains(expressions):
                yield from self.below(target, where, family, matches, depth + 1)
            rule = PacketRule(where, self.texts.get(handle, ""), family, matches)
            if rule.names_destination and any(
                _ENDS & expression.keys() for expression in expressions
            ):
                yield rule

    def original(self, chain: str, where: str, family: int) -> Iterator[PacketRule]:
        """Yield the rules of a chain that name the original destination."""
        for expressions, handle in self.listing.rules.get(chain, ()):
            matches = tuple(self.matches(expressions))
            if any(match.original and match.names_destination for match in matches):
                yield PacketRule(where, self.texts.get(handle, ""), family, matches)

    def matches(self, expressions: Expressions) -> Iterator[Match]:
        """Yield what a rule asks of the destination and of the protocol."""
        for expression in expressions:
            if "match" in expression:
                match = expression["match"]
                yield from self._match(match["left"], match["right"], match["op"] == "!=")
            elif "vmap" in expression:
                key, data = expression["vmap"]["key"], expression["vmap"]["data"]
                keys = [pair[0] for pair in data["set"]] if isinstance(data, Mapping) else data
                yield from self._match(key, keys, negated=False)

    def _match(self, left: Json, right: Json, negated: bool) -> Iterator[Match]:
        """Yield a condition if ``left`` is about the destination or the protocol."""
        if not isinstance(left, Mapping):
            return
        values = list(flat_values(right, self.listing.sets))
        if "concat" in left:
            # A condition for each part; values that belong together are not kept together.
            rows = [value["concat"] for value in values if isinstance(value, Mapping)]
            for index, part in enumerate(left["concat"]):
                column = [row[index] for row in rows if len(row) == len(left["concat"])]
                yield from self._match(part, column, negated)
            return
        about, original = _about(left)
        if about == "address":
            networks = tuple(network for value in values for network in _networks_of(value))
            yield Match(networks=networks, original=original, negated=negated)
        elif about == "port":
            ports = tuple(filter(None, map(_port_range, values)))
            yield Match(ports=ports, protocols=_protocols(left), original=original, negated=negated)
        elif about == "protocol" and not negated:
            yield Match(protocols=frozenset(str(value).upper() for value in values))


def _about(left: Mapping[str, Json]) -> tuple[str, bool]:
    """Return the subject of an expression, and whether it is conntrack's original destination."""
    ((kind, value),) = left.items()
    if kind == "payload" and isinstance(value, Mapping):
        field = str(value.get("field"))
        return {"daddr": "address", "dport": "port", "protocol": "protocol"}.get(field, ""), False
    if kind == "meta":
        return ("protocol" if value.get("key") == "l4proto" else ""), False
    if kind == "ct" and value.get("dir") == "original":
        key = str(value.get("key", "")).split()[-1]
        return {"daddr": "address", "proto-dst": "port"}.get(key, ""), True
    return "", False


def _protocols(left: Mapping[str, Json]) -> frozenset[str]:
    """Return the protocol that ``tcp dport`` implies."""
    name = str(left.get("payload", {}).get("protocol", "")).upper()
    return frozenset({name} & {"TCP", "UDP", "SCTP"})


def _networks_of(value: Json) -> tuple[Network, ...]:
    """Return the network of an address, a prefix, or the smallest network around a range."""
    if not isinstance(value, Mapping):
        return _networks(str(value))
    if "prefix" in value:
        return _networks(f"{value['prefix']['addr']}/{value['prefix']['len']}")
    ends = [network for end in value.get("range", ()) for network in _networks(str(end))]
    return (_around(*ends),) if len(ends) == 2 else ()


def _around(first: Network, last: Network) -> Network:
    network = first
    while not contains(network, last.address):
        network = Network(first.address, network.bits - 1)
    return network


def _port_range(value: Json) -> tuple[int, int] | None:
    ends = value["range"] if isinstance(value, Mapping) and "range" in value else [value, value]
    try:
        return int(ends[0]), int(ends[1])
    except (ValueError, TypeError):
        return None
