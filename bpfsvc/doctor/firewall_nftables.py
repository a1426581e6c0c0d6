"""Rules of nftables that name a destination before it is translated, from ``nft -j``. Pure.

Chains at the hooks ingress and prerouting, and at output for the node's own packets, of a priority
before that of DNAT; chains that those call; and in any chain rules that match conntrack's original
destination (``ct original daddr``, ``ct original proto-dst``).
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, NamedTuple

from bpfsvc.doctor.firewall_rules import Match, Network, PacketRule, network

_FAMILIES = {"ip": 4, "ip6": 6, "inet": 0, "netdev": 0, "bridge": 0}
_DNAT = -100
"""The priority of kube-proxy's chains that translate (NF_IP_PRI_NAT_DST)."""

_EARLY_HOOKS = ("ingress", "prerouting", "output")
_ENDS = frozenset(
    {"accept", "drop", "reject", "return", "vmap", "queue", "mangle", "tproxy", "log", "counter"}
)
"""What a rule may do, and would not do to a packet that is translated already."""

_DEEPEST = 16
_HANDLES = re.compile(r"^\t\t(\S.*?) # handle (\d+)$", re.MULTILINE)
_Json = Any
"""A part of nft's output; libnftables-json(5) has the format."""


def read_nftables(listed: Mapping[str, _Json], text: str) -> Iterator[PacketRule]:
    """Yield the rules of one table, which ``nft -j list`` and ``nft -a list`` have printed."""
    texts = {int(handle): rule for rule, handle in _HANDLES.findall(text)}
    items = [item for each in listed["nftables"] for item in each.items()]
    rules: dict[str, list[_Rule]] = {}
    for kind, each in items:
        if kind == "rule":
            rule = _Rule(each["expr"], texts.get(each.get("handle", 0), ""))
            rules.setdefault(each["chain"], []).append(rule)
    reader = _Reader({each["name"]: each for kind, each in items if kind in ("set", "map")}, rules)
    for kind, chain in items:
        if kind != "chain":
            continue
        family = _FAMILIES.get(chain["family"], 0)
        where = f"nftables: {chain['family']} {chain['table']}, {chain['name']}"
        if _is_early(chain):
            yield from reader.below(chain["name"], where, family, ())
        else:
            yield from reader.original(chain["name"], where, family)


def _is_early(chain: _Json) -> bool:
    """True if the kernel calls a chain before netfilter's DNAT."""
    early = chain.get("hook") == "ingress" or chain.get("prio", 0) < _DNAT
    return chain.get("hook") in _EARLY_HOOKS and early


class _Rule(NamedTuple):
    """A rule's expressions, and the rule as nft prints it."""

    expressions: list[_Json]
    text: str


class _Reader:
    """The sets and rules of one table."""

    def __init__(self, sets: Mapping[str, _Json], rules: Mapping[str, list[_Rule]]) -> None:
        self._sets = sets
        self._rules = rules

    def below(
        self, chain: str, where: str, family: int, conditions: tuple[Match, ...], depth: int = 0
    ) -> Iterator[PacketRule]:
        """Yield the rules of a chain and of those that it calls, if they name a destination."""
        for expressions, text in self._rules.get(chain, ()) if depth <= _DEEPEST else ():
            matches = (*conditions, *self._matches(expressions))
            for target in _targets(expressions):
                yield from self.below(target, where, family, matches, depth + 1)
            found = PacketRule(where, text, family, matches)
            if found.names_destination and any(_ENDS & each.keys() for each in expressions):
                yield found

    def original(self, chain: str, where: str, family: int) -> Iterator[PacketRule]:
        """Yield the rules of a chain that name the original destination."""
        for expressions, text in self._rules.get(chain, ()):
            every = tuple(self._matches(expressions))
            if any(each.original and each.names_destination for each in every):
                yield PacketRule(where, text, family, every)

    def _matches(self, expressions: Iterable[_Json]) -> Iterator[Match]:
        for expression in expressions:
            if "match" in expression:
                match = expression["match"]
                negated = match["op"] == "!="
                yield from self._match(match["left"], match["right"], negated)
            elif "vmap" in expression:
                vmap = expression["vmap"]
                data = vmap["data"]
                keys = data["set"] if isinstance(data, Mapping) else self._elements(data)
                right = {"set": [each[0] for each in keys]}
                yield from self._match(vmap["key"], right, negated=False)

    def _match(self, left: _Json, right: _Json, negated: bool) -> Iterator[Match]:
        """Yield a condition for what ``left`` is about, if that is the destination."""
        if not isinstance(left, Mapping):
            return
        if "concat" in left:
            yield from self._concatenation(left["concat"], right, negated)
            return
        about, original = _about(left)
        values = list(self._values(right))
        if about == "address":
            networks = tuple(each for each in map(_network, values) if each is not None)
            yield Match(networks=networks, original=original, negated=negated)
        elif about == "port":
            ports = tuple(filter(None, map(_port_range, values)))
            yield Match(ports=ports, protocols=_protocols(left), original=original, negated=negated)
        elif about == "protocol" and not negated:
            yield Match(protocols=frozenset(str(each).upper() for each in values))

    def _concatenation(self, parts: list[_Json], right: _Json, negated: bool) -> Iterator[Match]:
        """Yield a condition for each part; which values belong together is not followed."""
        rows = [each["concat"] for each in self._values(right) if isinstance(each, Mapping)]
        for number, part in enumerate(parts):
            column = [row[number] for row in rows if len(row) == len(parts)]
            yield from self._match(part, {"set": column}, negated)

    def _values(self, right: _Json) -> Iterator[_Json]:
        """Yield the values of a set, of a named one, or a single one."""
        if isinstance(right, str) and right.startswith("@"):
            for each in self._elements(right):
                yield from self._values(each[0] if isinstance(each, list) else each)
        elif isinstance(right, Mapping) and "set" in right:
            for each in right["set"]:
                yield from self._values(each)
        elif isinstance(right, Mapping) and "elem" in right:
            yield from self._values(right["elem"]["val"])
        elif isinstance(right, list):
            for each in right:
                yield from self._values(each)
        else:
            yield right

    def _elements(self, name: str) -> list[_Json]:
        elements: list[_Json] = self._sets.get(name.removeprefix("@"), {}).get("elem", [])
        return elements


def _about(left: Mapping[str, _Json]) -> tuple[str, bool]:
    """Return what an expression is about, and whether it is conntrack's original destination."""
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


def _protocols(left: Mapping[str, _Json]) -> frozenset[str]:
    """Return the protocol that ``tcp dport`` implies."""
    name = str(left.get("payload", {}).get("protocol", "")).upper()
    return frozenset({name} if name in ("TCP", "UDP", "SCTP") else ())


def _network(value: _Json) -> Network | None:
    """Return an address, a prefix, or the smallest prefix around a range."""
    try:
        if isinstance(value, Mapping) and "prefix" in value:
            return network(f"{value['prefix']['addr']}/{value['prefix']['len']}")
        if isinstance(value, Mapping) and "range" in value:
            return _around(*map(network, value["range"]))
        return network(str(value))
    except (ValueError, TypeError):
        return None


def _around(first: Network, last: Network) -> Network:
    found = first
    while last.network_address not in found:
        found = found.supernet()
    return found


def _port_range(value: _Json) -> tuple[int, int] | None:
    ends = value["range"] if isinstance(value, Mapping) and "range" in value else [value, value]
    try:
        return int(ends[0]), int(ends[1])
    except (ValueError, TypeError):
        return None


def _targets(expressions: Iterable[_Json]) -> Iterator[str]:
    for expression in expressions:
        for kind, value in expression.items():
            if kind in ("jump", "goto"):
                yield value["target"]
            elif kind == "vmap" and isinstance(value["data"], Mapping):
                yield from _targets(verdict for _, verdict in value["data"]["set"])
