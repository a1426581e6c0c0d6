"""kube-proxy's virtual servers in ipvs mode, as ipvsadm, ipset and iptables print them. Pure.

kubernetes/kubernetes, ``pkg/proxy/ipvs/proxier.go``: a virtual server for each address and port;
NodePorts have a virtual server at each address of the node, all others at addresses of a dummy
device. A few rules of iptables ask sets which packets to masquerade, and who may ask a load
balancer's address. The names of Services are nowhere.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import NamedTuple

from bpfsvc.base.address import family as family_of
from bpfsvc.base.address import pack
from bpfsvc.base.protocols import PROTOCOLS
from bpfsvc.migration.decisions import ANY_NODE_ADDRESS
from bpfsvc.migration.kube_proxy import names
from bpfsvc.migration.netfilter.iptables import RulesTable, words_of
from bpfsvc.migration.netfilter.ipvs import read_saved, read_sets
from bpfsvc.migration.verify.rules import Rule, RuleSet, UnreadableRules, pods_or_others
from bpfsvc.services.entries import Frontend

LAYOUT = "ipvs"

_NODE_PORTS = {"NODE-PORT-TCP": "TCP", "NODE-PORT-UDP": "UDP", "NODE-PORT-SCTP-HASH": "SCTP"}
_NODE_PORTS_LOCAL = {name.replace("PORT-", "PORT-LOCAL-"): to for name, to in _NODE_PORTS.items()}
_SERVERS, _FIREWALL, _MARKS = "virtual servers", "source ranges", "masquerade"
_SERVICES = "KUBE-SERVICES"

_Table = dict[Frontend, tuple[Rule, ...]]


class _Sets(NamedTuple):
    """kube-proxy's sets of a family, by name without prefix; members as ``ipset save`` has them."""

    members: Mapping[str, Sequence[str]]
    node: bytes
    """Stands for the addresses of NodePorts."""

    def frontends(self, *wanted: str) -> frozenset[Frontend]:
        """Return the frontends of some sets."""
        return frozenset(
            self._node_port(member, name) if "NODE-PORT" in name else _frontend(member)
            for name in wanted
            for member in self.members.get(name, ())
        )

    def _node_port(self, member: str, name: str) -> Frontend:
        protocol = (_NODE_PORTS | _NODE_PORTS_LOCAL)[name]
        return Frontend(self.node, int(member.rpartition(":")[2]), PROTOCOLS[protocol])


def is_of_ipvs(nat: RulesTable) -> bool:
    """True if kube-proxy wrote the rules of a table nat in ipvs mode."""
    return "KUBE-LOAD-BALANCER" in nat.policies


def read_ipvs(
    family: int, saved: str, sets: str, nat: RulesTable | None, dummy: Collection[bytes]
) -> RuleSet | None:
    """Return kube-proxy's rules of a family; None without virtual servers of its own.

    ``saved``, ``sets``: what ``ipvsadm -Sn`` and ``ipset save`` print; ``nat``: the table of
    iptables; ``dummy``: the addresses of kube-proxy's device.
    """
    node = ANY_NODE_ADDRESS[family]
    known = names.SETS[family]
    members = {known[name]: held for name, held in read_sets(sets).items() if name in known}
    by_name = _Sets(members, node)
    node_ports = by_name.frontends(*_NODE_PORTS)
    servers: _Table = {}
    addresses: set[bytes] = set()
    for server in read_saved(saved):
        if family_of(server.address) != family:
            continue
        frontend = Frontend(server.address, server.port, server.protocol)
        if server.address not in dummy:
            addresses.add(server.address)
            frontend = frontend._replace(address=node)
            if frontend not in node_ports:
                continue  # of another program
        verdict = "" if server.backends else "reject"
        rule = Rule(affinity=server.affinity, backends=server.backends, verdict=verdict)
        servers[frontend] = (rule,)
    if not servers:
        return None
    return RuleSet(
        LAYOUT,
        family,
        {
            _FIREWALL: (Rule(table=_firewall(by_name)),),
            _MARKS: tuple(_marks(by_name, nat)),
            _SERVERS: (Rule(table=servers),),
        },
        firewall=(_FIREWALL, _MARKS),
        services=_SERVERS,
        filters=(),
        names=dict.fromkeys(servers, ""),
        nodeports=frozenset(addresses) or None,
    )


def _frontend(member: str) -> Frontend:
    """Return the frontend of a member ``10.96.0.10,tcp:80``, whatever follows."""
    address, protocol_and_port, *_ = member.split(",")
    protocol, _, port = protocol_and_port.partition(":")
    return Frontend(pack(address), int(port), PROTOCOLS[protocol.upper()])


def _firewall(sets: _Sets) -> _Table:
    """Return for each address with source ranges that other clients are dropped."""
    ranges: dict[Frontend, list[str]] = {}
    for name in ("LOAD-BALANCER-SOURCE-CIDR", "LOAD-BALANCER-SOURCE-IP"):
        for member in sets.members.get(name, ()):
            ranges.setdefault(_frontend(member), []).append(member.split(",")[2])
    return {
        frontend: (Rule(verdict="drop", sources=tuple(ranges.get(frontend, ()))),)
        for frontend in sets.frontends("LOAD-BALANCER-FW")
    }


def _marks(sets: _Sets, nat: RulesTable | None) -> Iterator[Rule]:
    """Yield the rules that mark packets for masquerade: for everyone, and at cluster IPs."""
    marked = (Rule(mark=True),)
    local = sets.frontends("LOAD-BALANCER-LOCAL", *_NODE_PORTS_LOCAL)
    everyone = sets.frontends("EXTERNAL-IP", "LOAD-BALANCER", *_NODE_PORTS) - local
    yield Rule(table=dict.fromkeys(everyone, marked))
    cluster_ips = dict.fromkeys(sets.frontends("CLUSTER-IP"), marked)
    for rule in nat.rules if nat else ():
        words = words_of(rule)
        if (
            words.get("-A") == _SERVICES
            and words.get("--match-set").endswith("-CLUSTER-IP")
            and words.get("-j") == names.MARK_MASQUERADE
        ):
            if "dst,dst" not in rule:
                # For clients that use a node as a router, where the pods' range is not known.
                raise UnreadableRules(
                    f"kube-proxy's rule {rule!r} does not ask for the destination",
                    "give kube-proxy the range of pods: --cluster-cidr",
                )
            yield Rule(clients=pods_or_others(words), table=cluster_ips)
