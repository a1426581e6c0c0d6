"""kube-proxy's rules in nftables mode, from ``nft -j list table ip kube-proxy``. Pure.

kubernetes/kubernetes, ``pkg/proxy/nftables/proxier.go``: the maps service-ips and service-nodeports
lead to chains service-, local- and external-; firewall-ips leads to chains that check sources; the
maps no-endpoint-services and no-endpoint-nodeports drop or reject. A chain of a Service translates
by a map; with session affinity, and in older releases, it leads to a chain for each endpoint.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, NamedTuple

from bpfsvc.base.address import endpoint_text, pack
from bpfsvc.base.protocols import PROTOCOL_NAMES
from bpfsvc.migration.verify.decisions import NODE, Frontend
from bpfsvc.migration.verify.rules import EVERYONE, Rule, RuleSet, UnreadableRules

_FIREWALL, _SERVICES = "firewall-check", "services"
_FILTERS = ("service-endpoints-check", "nodeport-endpoints-check")
_NOT_WALKED = ("filter-", "nat-", "masquerading", "cluster-ips-check")
"""How chains begin that are called by the kernel, or that no first packet of a Service needs."""

_CHAIN = re.compile(r"(?:firewall|external|local|service)-[A-Z2-7]{8}-([^/]+/[^/]+)/\w+/(.*)")
_SKIPPED = frozenset({"counter", "comment", "set", "log"})
_NUMBERS = {str(number): name for number, name in PROTOCOL_NAMES.items()}

_Json = Any
"""A part of nft's output; libnftables-json(5) has the format."""


class _Named(NamedTuple):
    """A set or map of the table."""

    elements: list[_Json]
    timeout: int


def read_nftables(listed: Mapping[str, _Json], family: int) -> RuleSet | None:
    """Return kube-proxy's rules from the parsed output; None if it has none there."""
    items = [item for each in listed["nftables"] for item in each.items()]
    reader = _Reader(family, dict(_named(items)))
    chains: dict[str, list[Rule]] = {
        each["name"]: [] for kind, each in items if kind == "chain" and _walked(each["name"])
    }
    if _SERVICES not in chains:
        return None
    for kind, each in items:
        if kind == "rule" and each["chain"] in chains:
            chains[each["chain"]] += reader.rules(each["chain"], each["expr"])
    return RuleSet(
        "nftables",
        family,
        {name: tuple(rules) for name, rules in chains.items()},
        firewall=(_FIREWALL,) if _FIREWALL in chains else (),
        services=_SERVICES,
        filters=tuple(each for each in _FILTERS if each in chains),
        names=reader.names,
        nodeports=reader.nodeports(),
    )


def _walked(chain: str) -> bool:
    return not chain.startswith(_NOT_WALKED)


def _named(items: Iterable[tuple[str, _Json]]) -> Iterator[tuple[str, _Named]]:
    for kind, each in items:
        if kind in ("set", "map"):
            yield each["name"], _Named(each.get("elem", []), each.get("timeout", 0))


class _Reader:
    """Turns expressions into rules; ``names``: the Service of each frontend of its maps."""

    def __init__(self, family: int, named: Mapping[str, _Named]) -> None:
        self._node = NODE[family]
        self._named = named
        self.names: dict[Frontend, str] = {}

    def nodeports(self) -> frozenset[str] | None:
        """Return the addresses that accept NodePorts, None if rules name them in another way."""
        found = self._named.get("nodeport-ips")
        return frozenset(map(_plain, found.elements)) if found else None

    def rules(self, chain: str, expressions: Iterable[Mapping[str, _Json]]) -> Iterator[Rule]:
        """Yield the rule for some expressions; nothing for one that matters to no client here."""
        rule = Rule()
        for expression in expressions:
            ((kind, value),) = expression.items()
            if kind == "match":
                known = self._match(rule, value, chain)
                if known is None:
                    return
                rule = known
            elif kind == "vmap":
                rule = self._look_up(rule, value)
            elif kind not in _SKIPPED:
                rule = _act(rule, kind, value, chain)
        yield rule

    def _match(self, rule: Rule, match: _Json, chain: str) -> Rule | None:
        """Return the rule with one more condition; None if it is about hairpin alone."""
        left, right, same = match["left"], match["right"], match["op"] in ("==", "in")
        about: _Json
        ((kind, about),) = left.items()
        if kind == "ct":
            return rule
        if kind == "fib" and "saddr" in about["flags"]:
            return rule._replace(clients=rule.clients & _classes({"node"}, same))
        if kind == "fib" and same:
            return rule._replace(address=frozenset({self._node}))
        if kind == "meta" and about["key"] == "l4proto" and same:
            return rule._replace(protocol=_protocol(right))
        if kind == "meta" and about["key"] in ("iifname", "iif"):
            return rule._replace(clients=rule.clients & _classes({"pod"}, same))
        if kind == "payload" and about["field"] == "daddr":
            return self._destination(rule, right, same)
        if kind == "payload" and about["field"] == "dport" and same:
            return rule._replace(port=int(right))
        if kind == "payload" and about["field"] == "saddr":
            return self._source(rule, right, same, chain)
        raise _unreadable(chain, match)

    def _destination(self, rule: Rule, right: _Json, same: bool) -> Rule:
        if isinstance(right, str) and right.startswith("@"):
            if right == "@nodeport-ips":
                return rule._replace(address=frozenset({self._node}))
            elements = self._named[right[1:]].elements
            return rule._replace(address=frozenset(map(_plain, elements)))
        if not same:  # anything but loopback
            return rule._replace(address=frozenset({self._node}))
        return rule._replace(address=frozenset({_plain(right)}))

    def _source(self, rule: Rule, right: _Json, same: bool, chain: str) -> Rule | None:
        if isinstance(right, str) and right.startswith("@"):
            return rule._replace(surely=False, affinity=self._named[right[1:]].timeout)
        if chain.startswith("endpoint-"):
            return None
        if chain.startswith("firewall-"):
            return rule._replace(sources=tuple(_networks(right)))
        return rule._replace(clients=rule.clients & _classes({"pod"}, same))

    def _look_up(self, rule: Rule, vmap: _Json) -> Rule:
        key, data = vmap["key"], vmap["data"]
        if "numgen" in key:
            return rule._replace(
                targets=tuple(verdict["goto"]["target"] for _, verdict in data["set"]),
                returns=False,
            )
        table: dict[Frontend, tuple[Rule, ...]] = {}
        for raw, verdict in self._named[data.removeprefix("@")].elements:
            comment = raw["elem"].get("comment", "") if "elem" in raw else ""
            parts = (raw["elem"]["val"] if "elem" in raw else raw)["concat"]
            address, protocol, port = parts if len(parts) == 3 else (self._node, *parts)
            to = Frontend(address, int(port), _protocol(protocol))
            ((kind, value),) = verdict.items()
            table[to] = (_act(Rule(), kind, value, data),)
            named = _CHAIN.fullmatch(value["target"]) if kind in ("goto", "jump") else None
            name = f"{named[1]}:{named[2]}".removesuffix(":") if named else comment
            self.names[to] = name or self.names.get(to, "")
        return rule._replace(table=table)


def _act(rule: Rule, kind: str, value: _Json, chain: str) -> Rule:
    """Return the rule with what it does."""
    if kind in ("goto", "jump"):
        return rule._replace(targets=(value["target"],), returns=kind == "jump")
    if kind in ("drop", "reject"):
        return rule._replace(verdict=kind)
    if kind == "mangle" and value["key"] == {"meta": {"key": "mark"}}:
        return rule._replace(mark=True)
    if kind == "dnat":
        return rule._replace(backends=tuple(_backends(value)))
    raise _unreadable(chain, {kind: value})


def _backends(dnat: _Json) -> Iterator[str]:
    """Yield the backends of a translation to one, or to one of a map."""
    address = dnat["addr"]
    if isinstance(address, str):
        yield endpoint_text(pack(address), int(dnat["port"]))
        return
    for _, place in address["map"]["data"]["set"]:
        one, port = place["concat"]
        yield endpoint_text(pack(one), int(port))


def _classes(classes: set[str], same: bool) -> frozenset[str]:
    return frozenset(classes) if same else EVERYONE - classes


def _protocol(raw: str | int) -> str:
    return _NUMBERS.get(str(raw), str(raw).upper())


def _networks(raw: _Json) -> Iterator[str]:
    """Yield the networks of a set, or of one address or prefix."""
    if isinstance(raw, Mapping) and "set" in raw:
        for each in raw["set"]:
            yield from _networks(each)
    elif isinstance(raw, Mapping) and "prefix" in raw:
        yield f"{raw['prefix']['addr']}/{raw['prefix']['len']}"
    else:
        yield _plain(raw)


def _plain(raw: _Json) -> str:
    """Return an element without its comment."""
    return str(raw["elem"]["val"] if isinstance(raw, Mapping) else raw)


def _unreadable(chain: str, part: _Json) -> UnreadableRules:
    return UnreadableRules(f"kube-proxy's chain {chain} has {part}, which bpfsvc does not know")
