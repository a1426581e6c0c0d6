"""Check facts about what the fast path would bypass: netfilter, policies, other ways, IPsec. Pure.

The fast path bypasses netfilter, programs of others, queues, and IPsec. Programs and queues belong
to one interface, and the agent leaves such interfaces out. The rest concerns the whole node, and
one sign of it is enough:

* Programs that enforce network policies: Calico and Canal (interfaces cali..., chains cali-...;
  projectcalico/calico, felix/rules), kube-router (KUBE-POD-FW-, KUBE-NWPLCY-, KUBE-ROUTER-;
  cloudnativelabs/kube-router, pkg/controllers/netpol), Weave (WEAVE-NPC), Azure (AZURE-NPM),
  Antrea, Cilium, OVN-Kubernetes, the AWS agent (its pinned map of connections;
  aws/aws-network-policy-agent, pkg/ebpf). They may have no rule yet, and one soon.
* Rules for forwarded packets that drop, reject, divert or change them, and policies that drop. A
  rule against packets that conntrack finds invalid does not count: it never sees packets of the
  fast path. iptables-nft-save may write a rule that only nft understands without its target.
* Rules that may have to see each packet (:mod:`bpfsvc.doctor.check.each_packet`).
* Chains of nftables for forwarded packets: their rules are not read. Chains named like iptables'
  own are an exception: iptables-nft-save writes their rules, or nothing if iptables could not have
  made them.
* Chains of nftables by which a CNI plugin masquerades (containernetworking/plugins, pkg/ip,
  ipmasq_nftables_linux.go).
* IPsec policies: packets would leave unencrypted.
* Other ways: rules of routes; and answers that come by another uplink than the request left by.
  Those are left to the stack, for its reverse path filter. There conntrack finds them invalid, as
  it has not seen the request, so a rule against invalid packets drops them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from ipaddress import IPv4Network, IPv6Network, ip_network

from bpfsvc.base.fast_path import ESTABLISHED, FAST, FastPathLevel
from bpfsvc.base.texts import list_text
from bpfsvc.doctor.check.each_packet import FORWARDING_CHAINS
from bpfsvc.doctor.check.established import (
    OTHER_POLICY_DEVICES,
    each_packet_obstacles,
    established_objections,
    ipsec_obstacles,
    rule_obstacles,
)
from bpfsvc.doctor.facts import CNI_MASQUERADE_TABLE, POLICY_PINS, FastPathFacts
from bpfsvc.doctor.finding import Finding, note, ok
from bpfsvc.migration.kube_proxy import conntrack_keepalive, names
from bpfsvc.migration.netfilter.iptables import (
    RulesTable,
    flavour_text,
    reachable,
    states_of,
    target_of,
    words_of,
)
from bpfsvc.migration.netfilter.nftables import Chain

_POLICY_DEVICES = {"cali": "Calico", **OTHER_POLICY_DEVICES}
"""Prefixes of interfaces -> programs that enforce policies."""

_POLICY_CHAINS = {
    "cali-": "Calico",
    "KUBE-POD-FW-": "kube-router",
    "KUBE-NWPLCY-": "kube-router",
    "KUBE-ROUTER-": "kube-router",
    "WEAVE-NPC": "Weave",
    "AZURE-NPM": "Azure's network policy manager",
    "ANTREA-": "Antrea",
    "CILIUM_": "Cilium",
}
"""Prefixes of chains of iptables -> programs that enforce policies."""

_STOPS = frozenset({"DROP", "REJECT", "NFQUEUE", "QUEUE", "TPROXY", "SYNPROXY"})

_CHANGES = frozenset({"TCPMSS", "DSCP", "TOS", "TTL", "HL", "ECN", "CLASSIFY", "TEE"})
"""Without these targets a packet may be too long for its way, or be in a wrong queue."""

_INVALID = frozenset({"INVALID"})
_FOR_THE_NODE = "-A INPUT "

_CNI_CHAIN = "CNI-"
_SPARES = frozenset({"ACCEPT", "RETURN"})

_IPTABLES = {"filter": 0, "mangle": -150, "raw": -300, "security": 50}
"""Tables of nftables that iptables makes -> the priority of their chains for forwarded packets."""

_NFT_FLAVOURS = {"ip": flavour_text("nft", 4), "ip6": flavour_text("nft", 6)}
"""By family: the flavour of iptables that prints them."""

_KNOWN_TABLES = frozenset({names.NFT_TABLE, conntrack_keepalive.TABLE})
"""kube-proxy's table, which bpfsvc replaces, and bpfsvc's."""


def check_fast_path(facts: FastPathFacts) -> Iterator[Finding]:
    """Check which level ``--fast-path auto`` gets, and what forbids the better levels."""
    for level, objections in ((FAST, fast_path_objections), (ESTABLISHED, established_objections)):
        texts = list(objections(facts))
        if not texts:
            yield _finding(level)
            return
        for text in texts:
            yield note("fast path", f"the level {level} is not for this node: {text}")
    yield note("fast path", "--fast-path auto leaves all packets to the stack")


def _finding(level: FastPathLevel) -> Finding:
    if level == FAST:
        return ok("fast path", "nothing was found that --fast-path would bypass")
    return note(
        "fast path", "--fast-path auto gets the level established: netfilter sees each connection"
    )


def fast_path_objections(facts: FastPathFacts) -> Iterator[str]:
    """Yield why the fast path must not be used, clearest first, and last what cannot be checked."""
    yield from fast_path_obstacles(facts)
    yield from facts.unseen


def fast_path_obstacles(facts: FastPathFacts) -> Iterator[str]:
    """Yield what forbids the fast path."""
    yield from _policy_programs(facts)
    if _kube_proxy_translates(facts):
        yield "kube-proxy's rules translate packets here, too (bpfsvc cleanup --kube-proxy)"
    pods = tuple(map(ip_network, facts.pods))
    for flavour, table in facts.tables:
        obstacles = [*_obstacles_in(flavour, table)]
        yield from obstacles or each_packet_obstacles(flavour, table)
        yield from _masquerades_between(pods, flavour, table)
    yield from _obstacles_in_nftables(facts)
    yield from rule_obstacles(facts)
    yield from _drops_of_answers(facts)
    yield from ipsec_obstacles(facts)


def _obstacles_in_nftables(facts: FastPathFacts) -> Iterator[str]:
    for chain in facts.chains:
        where = f"{chain.family} {chain.table} {chain.name}"
        if chain.table == CNI_MASQUERADE_TABLE:
            yield f"nftables masquerades between pods in {where}"
        elif not is_read(chain, facts.tables):
            yield f"nftables filters forwarded packets in {where}"


def _kube_proxy_translates(facts: FastPathFacts) -> bool:
    """True if there are rules of kube-proxy for a Service, in any of its modes.

    For what they masquerade they choose ports, and know only the connections that netfilter saw.
    """
    return (
        names.DUMMY_DEVICE in facts.devices
        or any(chain.table == names.NFT_TABLE for chain in facts.chains)
        or any(
            names.is_chain_of_service(name) for _, table in facts.tables for name in table.policies
        )
    )


def _policy_programs(facts: FastPathFacts) -> Iterator[str]:
    reported = set()
    chains = {name for _, table in facts.tables for name in table.policies}
    for signs, seen in ((_POLICY_DEVICES, facts.devices), (_POLICY_CHAINS, frozenset(chains))):
        for prefix, program in signs.items():
            named = sorted(name for name in seen if name.startswith(prefix))
            if named and program not in reported:
                reported.add(program)
                yield f"{program} may enforce network policies here ({named[0]})"
    for pin in sorted(facts.pinned):
        yield f"{POLICY_PINS[pin]} may enforce network policies here"


def _obstacles_in(flavour: str, table: RulesTable) -> Iterator[str]:
    for chain in FORWARDING_CHAINS:
        if table.drops(chain):
            yield f"the policy of {chain} in {flavour} drops what no rule accepts"
    rules = table.by_chain()

    def called(chain: str) -> Iterator[str]:
        """Yield the targets, without kube-proxy's chains."""
        targets = map(target_of, rules.get(chain, ()))
        return (target for target in targets if not names.is_chain(target))

    for chain in reachable(FORWARDING_CHAINS, called):
        for rule in rules.get(chain, ()):
            target = target_of(rule)
            if target in _STOPS and states_of(rule) != _INVALID:
                yield f"a rule in {flavour} stops packets: {rule}"
                return
            if target in _CHANGES:
                yield f"a rule in {flavour} changes packets: {rule}"
                return
            if not target and flavour in _NFT_FLAVOURS.values():
                yield f"a rule in {flavour} may be one that only nft understands: {rule}"
                return


def _masquerades_between(
    pods: Iterable[IPv4Network | IPv6Network], flavour: str, table: RulesTable
) -> Iterator[str]:
    """Yield rules of CNI plugins that masquerade packets between pods.

    ``ipMasq`` of the plugins bridge and ptp makes a chain for each pod, which spares the network of
    the pod and multicast, and masquerades the rest.
    """
    for chain, lines in table.by_chain().items():
        if not chain.startswith(_CNI_CHAIN):
            continue
        rules = [(rule, words_of(rule)) for rule in lines]
        spared = [
            network
            for _, words in rules
            if words.get("-j") in _SPARES and "-d" not in words.negated
            for network in _networks(words.get("-d"))
        ]
        for rule, words in rules:
            if words.get("-j") != "MASQUERADE" or "-d" not in words.negated:
                continue
            versions = [network.version for network in _networks(words.get("-d"))]
            between = [network for network in pods if network.version in versions]
            if not all(_is_spared(network, spared) for network in between):
                yield f"a rule in {flavour} masquerades between pods: {rule}"
                return


def _networks(text: str) -> list[IPv4Network | IPv6Network]:
    """Return the network of ``-d``; nothing without one, or for a mask with holes."""
    try:
        return [ip_network(text)]
    except ValueError:
        return []


def _is_spared(
    pods: IPv4Network | IPv6Network, spared: Iterable[IPv4Network | IPv6Network]
) -> bool:
    first, last = pods.network_address, pods.broadcast_address
    return any(first in network and last in network for network in spared)


def _drops_of_answers(facts: FastPathFacts) -> Iterator[str]:
    """Yield the first rule that drops answers which come by another uplink."""
    for flavour, table in facts.tables if len(facts.uplinks) > 1 else ():
        for rule in table.rules:
            drops = target_of(rule) in ("DROP", "REJECT") and states_of(rule) == _INVALID
            if drops and not rule.startswith(_FOR_THE_NODE):
                yield (
                    f"answers may come by another one of {list_text(facts.uplinks, 4)} than"
                    f" requests leave by, and a rule in {flavour} drops them: {rule}"
                )
                return


def is_read(chain: Chain, tables: Iterable[tuple[str, RulesTable]]) -> bool:
    """True if ``tables``, of iptables, have the rules of a chain, or its table is known."""
    read = {(flavour, table.name) for flavour, table in tables}
    return chain.table in _KNOWN_TABLES or (
        _is_of_iptables(chain) and (_flavour_of(chain), chain.table) in read
    )


def _flavour_of(chain: Chain) -> str:
    """Return the flavour of iptables that writes the rules of a table of nftables."""
    return _NFT_FLAVOURS.get(chain.family, "")


def _is_of_iptables(chain: Chain) -> bool:
    return (
        chain.family in ("ip", "ip6")
        and chain.name in FORWARDING_CHAINS
        and chain.priority == _IPTABLES.get(chain.table)
    )
