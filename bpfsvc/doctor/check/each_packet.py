"""Find rules of netfilter that may have to see each packet of an established connection. Pure.

Where the middle of connections takes the fast path, netfilter sees a packet of each direction again
and again, and the others take the way that this packet was allowed. That is right for a rule if it
treats all packets of a direction alike: it looks at addresses, ports, interfaces, marks, or at what
conntrack knows of the connection, and accepts, drops or marks. A rule that limits, changes, counts,
logs or queues packets, or looks at what differs from packet to packet, has to see each packet. So
has a rule of which that is not known: what may be in a rule is listed here, and nothing else.

Rules that packets of established connections do not reach are left out: rules for packets in other
states, and rules after a rule that accepts all that is established. Packets with SYN, FIN or RST
never take the fast path, and the tables ``nat`` see only the first packet of a connection.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import NamedTuple

from bpfsvc.migration.kube_proxy import names
from bpfsvc.migration.netfilter.iptables import (
    RulesTable,
    reachable,
    states_of,
    target_of,
    without_comments,
)
from bpfsvc.migration.netfilter.nftables import (
    Expressions,
    Json,
    Listing,
    called_chains,
    has_named_map,
)

FORWARDING_CHAINS = ("PREROUTING", "FORWARD", "POSTROUTING")
"""Built-in chains of iptables that a forwarded packet passes."""


class _Step(NamedTuple):
    """A rule that packets of established connections reach.

    * ``cause``: why it may have to see each packet, "" if it does not.
    * ``accepts``: it accepts all that is established. ``leaves``: it may end the chain early.
    * ``calls``: chains that it calls. ``always``: for each packet.
    """

    cause: str = ""
    accepts: bool = False
    leaves: bool = False
    calls: Iterable[str] = ()
    always: bool = False


class _Walk:
    """Follows packets of established connections. ``steps(chain)``: a chain's rules in order."""

    def __init__(self, steps: Callable[[str], Iterator[_Step]]) -> None:
        self._steps = steps
        self._accepting: dict[str, bool] = {}

    def first_cause(self, chains: Iterable[str]) -> str:
        """Return the first cause in ``chains`` and in what they call, "" without one."""
        for chain in reachable(chains, self._called):
            for step in self._before_accepted(chain):
                if step.cause:
                    return step.cause
        return ""

    def _called(self, chain: str) -> Iterator[str]:
        for step in self._before_accepted(chain):
            yield from step.calls

    def _before_accepted(self, chain: str) -> Iterator[_Step]:
        for step in self._steps(chain):
            yield step
            if self._ends(step):
                return

    def _ends(self, step: _Step) -> bool:
        """True if no packet goes on to the next rule."""
        return step.accepts or (step.always and all(map(self._accepts_all, step.calls)))

    def _accepts_all(self, chain: str) -> bool:
        """True if a chain accepts all that is established, whatever its other rules say."""
        if chain not in self._accepting:
            self._accepting[chain] = False  # while it is found out: a loop accepts nothing
            for step in self._steps(chain):
                if self._ends(step):
                    self._accepting[chain] = True
                if step.leaves or self._accepting[chain]:
                    break
        return self._accepting[chain]


# -- iptables --


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


_MODULES = _words(
    "comment conntrack state mark connmark tcp udp udplite sctp dccp icmp icmp6 ipv6-icmp multiport"
    " set iprange addrtype physdev mac owner cgroup socket rpfilter pkttype policy realm helper"
    " connlabel connlimit time devgroup"
)
"""Matches that hold for all packets of a direction alike. Sets, limits of connections and times of
day may change, as rules do."""

_TARGETS = _words(
    "ACCEPT DROP REJECT RETURN MARK CONNMARK CONNSECMARK CT NOTRACK TRACE TCPMSS DNAT SNAT"
    " MASQUERADE REDIRECT NETMAP"
)
_LOGS = frozenset({"LOG", "NFLOG"})
_LIMITS = frozenset({"limit", "hashlimit"})
_OF_PACKETS = re.compile(r" --(?:packets|bytes)-(?:eq|lt|gt)| --ctexpire| --tcp-option")
_MODULE = re.compile(r" -m (\S+)")
_TCP_FLAGS = re.compile(r" (! )?--tcp-flags (\S+) (\S+)")
_ALWAYS = re.compile(r"^-A \S+ -[jg] \S+$")
_ACCEPTS_ESTABLISHED = re.compile(
    r"^-A \S+ -m (?:conntrack --ctstate|state --state) (?:[A-Z,]+,)?ESTABLISHED(?:,[A-Z,]+)?"
    r" -j ACCEPT$"
)
_ENDS = frozenset({"syn", "fin", "rst"})
"""Flags of packets that take the stack."""

_SAME_FLAGS = _ENDS | {"ack"}
"""All packets in the middle of a connection have the same of these flags."""


def iptables_each_packet(table: RulesTable) -> str:
    """Return the first rule that may have to see each packet of a connection, or ""."""
    if table.name == "nat":
        return ""
    rules = table.by_chain()

    def steps(chain: str) -> Iterator[_Step]:
        for rule in rules.get(chain, ()) if not names.is_chain(chain) else ():
            if _sees_established(rule):
                yield _step(rule, table)

    return _Walk(steps).first_cause(FORWARDING_CHAINS)


def _sees_established(rule: str) -> bool:
    states = states_of(rule)
    return not states or ("ESTABLISHED" in states) != ("!" in states)


def _step(rule: str, table: RulesTable) -> _Step:
    text, target = without_comments(rule), target_of(rule)
    modules = set(_MODULE.findall(text))
    if target in _LOGS:
        counts = not modules & _LIMITS
    else:
        counts = (
            not (target in _TARGETS or target in table.policies)
            or not modules <= _MODULES
            or _OF_PACKETS.search(text) is not None
            or not all(_flags_are_alike(*flags) for flags in _TCP_FLAGS.findall(text))
        )
    goes = " -g " in text
    return _Step(
        cause=rule if counts else "",
        accepts=_ACCEPTS_ESTABLISHED.match(text) is not None,
        leaves=goes or target == "RETURN",
        calls=[target] if target in table.policies else (),
        always=target in table.policies and not goes and _ALWAYS.match(text) is not None,
    )


def _flags_are_alike(negated: str, mask: str, flags: str) -> bool:
    looked_at, wanted = set(mask.lower().split(",")), set(flags.lower().split(","))
    return looked_at <= _SAME_FLAGS or (not negated and bool(wanted & _ENDS))


# -- nftables --

_ASKED_ONCE = frozenset({"kube-network-policies", "kindnet-network-policies"})
"""Tables of programs that decide about connections in a queue. The queue gets packets of a
connection until the program has accepted it, and again when its policies have changed
(kubernetes-sigs/kube-network-policies, pkg/dataplane)."""

_STATEMENTS = _words(
    "accept drop reject return continue jump goto notrack flow masquerade snat dnat redirect"
    " comment"
) | {"ct helper", "ct timeout", "ct expectation", "ct count"}

_NFT_VERDICTS = frozenset({"accept", "drop", "reject", "return", "jump", "goto", "vmap", "mangle"})

_CT_STATE = {"ct": {"key": "state"}}

_META = _words(
    "iif iifname iiftype iifgroup iifkind oif oifname oiftype oifgroup oifkind ibrname obrname"
    " ibriport obriport sdif sdifname l4proto nfproto protocol mark skuid skgid cgroup rtclassid"
    " pkttype secpath ipsec time day hour"
)
_CT = _words(
    "state status direction mark secmark label zone helper l3proto protocol saddr daddr proto-src"
    " proto-dst id"
) | {"ip saddr", "ip daddr", "ip6 saddr", "ip6 daddr"}
_PORTS = frozenset({"sport", "dport"})
_PAYLOAD = {
    "ip": frozenset({"saddr", "daddr", "protocol", "version"}),
    "ip6": frozenset({"saddr", "daddr", "nexthdr", "version"}),
    **dict.fromkeys(("tcp", "udp", "udplite", "sctp", "dccp", "th"), _PORTS),
    **dict.fromkeys(("icmp", "icmpv6"), frozenset({"type", "code"})),
    "ether": frozenset({"saddr", "daddr", "type"}),
    "arp": frozenset({"operation", "saddr ip", "daddr ip", "saddr ether", "daddr ether"}),
}
"""Fields that all packets of a direction have alike, and those of packets without a connection."""

_OPERATORS = frozenset({"&", "|", "^", "<<", ">>", "concat"})
_FLAGS = {"payload": {"protocol": "tcp", "field": "flags"}}


def nft_each_packet(listing: Listing, chains: Iterable[str]) -> str:
    """Return what may have to see each packet: "CHAIN: STATEMENT", called from ``chains``; or "".

    Raise one of ``NOT_UNDERSTOOD`` if the rules are not understood.
    """
    queues = any(name in _ASKED_ONCE for _, name in listing.tables)

    def steps(chain: str) -> Iterator[_Step]:
        for rule in listing.rules.get(chain, ()):
            accepts, reaches = _nft_states(rule.expressions)
            if not reaches:
                continue
            cause = next(_nft_causes(rule.expressions), "")
            if queues and cause == "queue":
                cause = ""
            # The chains that a map with a name calls are not looked up: all are taken.
            named = has_named_map(rule.expressions)
            calls = [*(listing.rules if named else called_chains(rule.expressions))]
            kinds = {kind for statement in rule.expressions for kind in statement}
            yield _Step(
                cause=f"{chain}: {cause}" if cause else "",
                accepts=accepts,
                leaves=bool(kinds & {"return", "goto", "vmap"}),
                calls=calls,
                always=bool(calls) and kinds <= {"jump", "counter"},
            )

    return _Walk(steps).first_cause(chains)


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


def _nft_causes(rule: Expressions) -> Iterator[str]:
    """Yield what in a rule depends on each packet."""
    kinds = {kind for statement in rule for kind in statement}
    for statement in rule:
        for kind, value in statement.items():
            if kind == "match":
                yield from _nft_condition(value)
            elif kind == "vmap":
                yield from _nft_fields(value["key"])
            elif kind == "mangle":
                yield from _nft_change(value["key"])
            elif kind == "counter":
                if isinstance(value, str):
                    yield f"counter {value}"
            elif kind == "log":
                if "limit" not in kinds:
                    yield kind
            elif kind == "limit":
                if "log" not in kinds or kinds & _NFT_VERDICTS:
                    yield kind
            elif kind not in _STATEMENTS:
                yield kind


def _nft_condition(condition: Mapping[str, Json]) -> Iterator[str]:
    left, right = condition["left"], condition["right"]
    if left == _FLAGS:
        if condition["op"] == "!=" or not _flags_in(right) & _ENDS:
            yield "tcp flags"
    elif isinstance(left, dict) and "&" in left and left["&"][0] == _FLAGS:
        alike = _flags_in(left["&"][1]) <= _SAME_FLAGS
        if not alike and (condition["op"] == "!=" or not _flags_in(right) & _ENDS):
            yield "tcp flags"
    else:
        yield from _nft_fields(left)


def _flags_in(value: Json) -> set[str]:
    """Return the names of flags in ``syn``, ``[syn, ack]``, ``{"|": [...]}`` or a set."""
    if isinstance(value, str):
        return {value}
    if isinstance(value, Mapping):
        value = [*value.values()]
    return {name for part in value for name in _flags_in(part)} if isinstance(value, list) else {""}


def _nft_fields(value: Json) -> Iterator[str]:
    """Yield the fields in an expression that differ from packet to packet."""
    if isinstance(value, list):
        for part in value:
            yield from _nft_fields(part)
    elif isinstance(value, Mapping):
        for kind, part in value.items():
            if kind in _OPERATORS:
                yield from _nft_fields(part)
            elif kind == "payload":
                protocol, field = part.get("protocol", ""), part.get("field", "")
                if field not in _PAYLOAD.get(protocol, ()):
                    yield f"{protocol} {field}" if field else "bytes of the packet"
            elif kind in ("meta", "ct"):
                if part["key"] not in (_META if kind == "meta" else _CT):
                    yield f"{kind} {part['key']}"
            elif kind not in ("fib", "rt", "socket", "ipsec"):
                yield kind


def _nft_change(key: Json) -> Iterator[str]:
    """Yield a change but of marks, and of TCP's options, which only a SYN has."""
    if "tcp option" not in key and key not in (
        {"meta": {"key": "mark"}},
        {"meta": {"key": "nftrace"}},
        *({"ct": {"key": name}} for name in ("mark", "label", "zone")),
    ):
        yield f"change of {next(_nft_fields(key), '') or next(iter(key), '')}"
