"""kube-proxy's rules in nftables mode, from ``nft -j list table ip kube-proxy``. Pure.

kubernetes/kubernetes, ``pkg/proxy/nftables/proxier.go``: the maps service-ips and service-nodeports
lead to chains service-, local- and external-; firewall-ips leads to chains that check sources; the
maps no-endpoint-services and no-endpoint-nodeports drop or reject. A chain of a Service translates
by a map, or to its single endpoint without a map (1.37); with session affinity, and in older
releases, it leads to a chain for each endpoint. Rules for loopback alone (1.37) are left out: a
NodePort's frontend stands for the node's other addresses.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping

from bpfsvc.base.address import pack
from bpfsvc.base.protocols import PROTOCOLS
from bpfsvc.migration.decisions import ANY_NODE_ADDRESS
from bpfsvc.migration.kube_proxy import names
from bpfsvc.migration.netfilter.nftables import (
    NOT_UNDERSTOOD,
    Expressions,
    Json,
    Listing,
    NamedSet,
    called_chains,
    flat_values,
)
from bpfsvc.migration.verify.rules import EVERYONE, IncompleteRules, Rule, RuleSet, UnreadableRules
from bpfsvc.services.entries import Frontend, Place

_FIREWALL, _SERVICES = "firewall-check", "services"
_FILTERS = ("service-endpoints-check", "nodeport-endpoints-check")
_NOT_WALKED = ("filter-", "nat-", "masquerading", "cluster-ips-check", "localhost-")
"""How chains begin that are called by the kernel, that are for loopback alone, or that no first
packet of a Service needs."""

_LOOPBACK: tuple[Json, ...] = ({"prefix": {"addr": "127.0.0.0", "len": 8}}, "127.0.0.1", "::1")
"""The destinations of rules for loopback."""

_COMMENT_BYTES = 128
"""The most that the kernel takes; kube-proxy cuts off the rest (1.37)."""

_CHAIN = re.compile(r"(?:firewall|external|local|service)-[A-Z2-7]{8}-([^/]+/[^/]+)/\w+/(.*)")
_SKIPPED = frozenset({"counter", "comment", "set", "log"})


def read_nftables(listing: Listing, family: int) -> RuleSet | None:
    """Return kube-proxy's rules; None if it has no table there.

    Raises :class:`~bpfsvc.migration.verify.rules.IncompleteRules` for a table written by half, and
    ``UnreadableRules``.
    """
    if not any(name == names.NFT_TABLE for _, name in listing.tables):
        return None
    try:
        return _rule_set(listing, family)
    except NOT_UNDERSTOOD as error:
        raise UnreadableRules(
            f"kube-proxy's rules of nftables are not understood: {error!r}",
            "report it with the output of nft -j list ruleset",
        ) from error


def _rule_set(listing: Listing, family: int) -> RuleSet:
    walked = [chain.name for chain in listing.chains if not chain.name.startswith(_NOT_WALKED)]
    if _SERVICES not in walked:
        raise IncompleteRules(f"chain {_SERVICES}")
    reader = _Reader(ANY_NODE_ADDRESS[family], listing.sets)
    chains = {
        name: tuple(
            rule
            for listed in listing.rules.get(name, ())
            for rule in reader.rules(name, listed.expressions)
        )
        for name in walked
    }
    return RuleSet(
        "nftables",
        family,
        chains,
        firewall=(_FIREWALL,) if _FIREWALL in chains else (),
        services=_SERVICES,
        filters=tuple(name for name in _FILTERS if name in chains),
        names=reader.names,
        nodeports=reader.nodeports(),
    )


class _Reader:
    """Turns expressions into rules; ``names``: the Service of each frontend of its maps."""

    def __init__(self, node: bytes, sets: Mapping[str, NamedSet]) -> None:
        self._node = node
        self._sets = sets
        self.names: dict[Frontend, str] = {}

    def nodeports(self) -> frozenset[bytes] | None:
        """Return the addresses that accept NodePorts, None if rules name them in another way."""
        return self._addresses("@nodeport-ips") if "nodeport-ips" in self._sets else None

    def rules(self, chain: str, expressions: Expressions) -> Iterator[Rule]:
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

    def _match(self, rule: Rule, match: Json, chain: str) -> Rule | None:
        """Return the rule with one more condition; None if it is for hairpin or loopback alone."""
        left, right, same = match["left"], match["right"], match["op"] in ("==", "in")
        about: Json
        ((kind, about),) = left.items()
        if kind == "ct":
            return rule
        if kind == "fib" and "saddr" in about["flags"]:
            return _of_clients(rule, "node", same)
        if kind == "fib" and same:
            return rule._replace(address=frozenset({self._node}))
        if kind == "meta" and about["key"] == "l4proto" and same:
            return rule._replace(protocol=_protocol(right, chain))
        if kind == "meta" and about["key"] in ("iifname", "iif"):
            return _of_clients(rule, "pod", same)
        if kind == "payload" and about["field"] == "daddr":
            if same and right in _LOOPBACK:
                return None
            # Anything but loopback, or the set of the node's addresses: a NodePort.
            is_node = not same or right == "@nodeport-ips"
            addresses = frozenset({self._node}) if is_node else self._addresses(right)
            return rule._replace(address=addresses)
        if kind == "payload" and about["field"] == "dport" and same:
            return rule._replace(port=int(right))
        if kind == "payload" and about["field"] == "saddr":
            return self._source(rule, right, same, chain)
        raise _unreadable(chain, match)

    def _source(self, rule: Rule, right: Json, same: bool, chain: str) -> Rule | None:
        if isinstance(right, str) and right.startswith("@"):
            return rule._replace(surely=False, affinity=self._named_set(right).timeout)
        if chain.startswith("endpoint-"):
            return None
        if chain.startswith("firewall-"):
            return rule._replace(sources=tuple(map(_network, flat_values(right, self._sets))))
        return _of_clients(rule, "pod", same)

    def _look_up(self, rule: Rule, vmap: Json) -> Rule:
        key, data = vmap["key"], vmap["data"]
        if "numgen" in key:
            return rule._replace(targets=tuple(called_chains([{"vmap": vmap}])), returns=False)
        table: dict[Frontend, tuple[Rule, ...]] = {}
        for raw, verdict in self._named_set(data).elements:
            comment = _name_in(raw["elem"].get("comment", "")) if "elem" in raw else ""
            parts = (raw["elem"]["val"] if "elem" in raw else raw)["concat"]
            *address, protocol, port = parts
            frontend = Frontend(
                pack(address[0]) if address else self._node, int(port), _protocol(protocol, data)
            )
            ((kind, value),) = verdict.items()
            table[frontend] = (_act(Rule(), kind, value, data),)
            named = _CHAIN.fullmatch(value["target"]) if kind in ("goto", "jump") else None
            if named:
                self.names[frontend] = f"{named[1]}:{named[2]}".removesuffix(":")
            elif not self.names.get(frontend):
                self.names[frontend] = comment
        return rule._replace(table=table)

    def _named_set(self, reference: str) -> NamedSet:
        """Return the set or map of a reference ``@name``."""
        name = reference.removeprefix("@")
        if name not in self._sets:
            raise IncompleteRules(f"set {name}")
        return self._sets[name]

    def _addresses(self, right: Json) -> frozenset[bytes]:
        if isinstance(right, str) and right.startswith("@"):
            self._named_set(right)
        try:
            return frozenset(pack(value) for value in flat_values(right, self._sets))
        except (TypeError, ValueError):
            raise UnreadableRules(f"kube-proxy's rules have {right} for an address") from None


def _act(rule: Rule, kind: str, value: Json, chain: str) -> Rule:
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


def _backends(dnat: Json) -> Iterator[Place]:
    """Yield the backends of a translation to one backend, or to a backend of a map."""
    address = dnat["addr"]
    if isinstance(address, str):
        yield pack(address), int(dnat["port"])
        return
    for _, backend in address["map"]["data"]["set"]:
        address, port = backend["concat"]
        yield pack(address), int(port)


def _name_in(comment: str) -> str:
    """Return the name of a Service in a comment, marked if kube-proxy may have cut it off."""
    return f"{comment}..." if len(comment.encode()) >= _COMMENT_BYTES else comment


def _of_clients(rule: Rule, client: str, same: bool) -> Rule:
    """Return the rule for one class of clients, or for all but that class."""
    clients = frozenset({client})
    return rule._replace(clients=rule.clients & (clients if same else EVERYONE - clients))


def _protocol(raw: str | int, chain: str) -> int:
    name = str(raw).upper()
    if name.isdecimal():
        return int(name)
    if name not in PROTOCOLS:
        raise _unreadable(chain, raw)
    return PROTOCOLS[name]


def _network(value: Json) -> str:
    """Return the text of an address or a prefix."""
    if isinstance(value, Mapping):
        return f"{value['prefix']['addr']}/{value['prefix']['len']}"
    return str(value)


def _unreadable(chain: str, part: Json) -> UnreadableRules:
    return UnreadableRules(f"kube-proxy's chain {chain} has {part}, which bpfsvc does not know")
