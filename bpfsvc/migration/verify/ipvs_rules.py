"""kube-proxy's virtual servers in ipvs mode, as ipvsadm, ipset and iptables print them. Pure.

kubernetes/kubernetes, ``pkg/proxy/ipvs/proxier.go``: a virtual server for each address and port,
those of NodePorts at each address of the node, all others at addresses of a dummy device. What is
masqueraded, and who may ask a load balancer's address, is in sets that a few rules of iptables ask.
The names of Services are nowhere.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from itertools import pairwise
from typing import NamedTuple

from bpfsvc.base.address import endpoint_text, pack
from bpfsvc.migration.kube_proxy import names
from bpfsvc.migration.kube_proxy.rules import RulesTable, words_of
from bpfsvc.migration.verify.decisions import NODE, Frontend
from bpfsvc.migration.verify.rules import EVERYONE, Rule, RuleSet, UnreadableRules

LAYOUT = "ipvs"

_PROTOCOLS = {"-t": "TCP", "-u": "UDP", "--sctp-service": "SCTP"}
_NODE_PORTS = {"NODE-PORT-TCP": "TCP", "NODE-PORT-UDP": "UDP", "NODE-PORT-SCTP-HASH": "SCTP"}
_NODE_PORTS_LOCAL = {name.replace("PORT-", "PORT-LOCAL-"): to for name, to in _NODE_PORTS.items()}
_SERVERS, _FIREWALL, _MARKS = "virtual servers", "source ranges", "masquerade"
_SERVICES = "KUBE-SERVICES"


class VirtualServer(NamedTuple):
    """A virtual server: its address, port and protocol; seconds of affinity; real servers."""

    place: Frontend
    affinity: int
    backends: tuple[str, ...]


class Sets(NamedTuple):
    """kube-proxy's sets of a family, by name without prefix; entries as ``ipset save`` has them."""

    entries: Mapping[str, tuple[str, ...]]

    def frontends(self, name: str, node: str) -> frozenset[Frontend]:
        """Return the frontends of a set; ``node`` stands for the addresses of NodePorts."""
        protocol = (_NODE_PORTS | _NODE_PORTS_LOCAL).get(name)
        found = self.entries.get(name, ())
        if protocol:
            ports = (each.rpartition(":")[2] for each in found)
            return frozenset(Frontend(node, int(port), protocol) for port in ports)
        return frozenset(_frontend(each) for each in found)


def is_of_ipvs(nat: RulesTable) -> bool:
    """True if the rules of a table nat are those of ipvs mode."""
    return "KUBE-LOAD-BALANCER" in nat.policies


def read_ipvs(
    family: int, saved: str, sets: str, nat: RulesTable | None, dummy: Collection[str]
) -> RuleSet | None:
    """Return what kube-proxy does in a family; None without virtual servers of its own.

    ``saved``, ``sets``: what ``ipvsadm -Sn`` and ``ipset save`` print; ``nat``: the table of
    iptables; ``dummy``: the addresses of kube-proxy's device.
    """
    known = Sets(dict(_sets(sets, family)))
    node_ports = _frontends(known, _NODE_PORTS, NODE[family])
    servers: dict[Frontend, tuple[Rule, ...]] = {}
    addresses: set[str] = set()
    for each in virtual_servers(saved):
        place = each.place
        if (6 if ":" in place.address else 4) != family:
            continue
        if place.address not in dummy:
            addresses.add(place.address)
            place = place._replace(address=NODE[family])
            if place not in node_ports:
                continue  # of another program
        verdict = "" if each.backends else "reject"
        servers[place] = (Rule(affinity=each.affinity, backends=each.backends, verdict=verdict),)
    if not servers:
        return None
    return RuleSet(
        LAYOUT,
        family,
        {
            _FIREWALL: (Rule(table=_firewall(known)),),
            _MARKS: tuple(_marks(known, NODE[family], nat)),
            _SERVERS: (Rule(table=servers),),
        },
        firewall=(_FIREWALL, _MARKS),
        services=_SERVERS,
        filters=(),
        names=dict.fromkeys(servers, ""),
        nodeports=frozenset(addresses) or None,
    )


def virtual_servers(saved: str) -> Iterator[VirtualServer]:
    """Yield those of ``ipvsadm -Sn``. Real servers of weight 0 get no new connections."""
    found: dict[Frontend, VirtualServer] = {}
    for line in saved.splitlines():
        command, kind, place, *words = line.split()
        protocol = _PROTOCOLS.get(kind)
        if protocol is None:
            continue  # of a firewall mark
        address, _, port = place.rpartition(":")
        to = Frontend(address.strip("[]"), int(port), protocol)
        options = dict(pairwise(words))
        if command == "-A":
            found[to] = VirtualServer(to, int(options.get("-p", 0)), ())
        elif command == "-a" and options["-w"] != "0":
            host, _, number = options["-r"].rpartition(":")
            backend = endpoint_text(pack(host.strip("[]")), int(number))
            met = found[to]
            found[to] = met._replace(backends=(*met.backends, backend))
    yield from found.values()


def _sets(text: str, family: int) -> Iterator[tuple[str, tuple[str, ...]]]:
    entries: dict[str, list[str]] = {}
    for line in text.splitlines():
        command, name, *words = line.split()
        known = names.SETS[family].get(name)
        if known and command == "add":
            entries.setdefault(known, []).append(words[0])
    yield from ((name, tuple(known)) for name, known in entries.items())


def _frontend(entry: str) -> Frontend:
    """Return the frontend of an entry ``10.96.0.10,tcp:80``, whatever follows."""
    address, place, *_ = entry.split(",")
    protocol, _, port = place.partition(":")
    return Frontend(address, int(port), protocol.upper())


def _frontends(known: Sets, wanted: Iterable[str], node: str) -> frozenset[Frontend]:
    return frozenset().union(*(known.frontends(name, node) for name in wanted))


def _firewall(known: Sets) -> dict[Frontend, tuple[Rule, ...]]:
    """Return for each address with source ranges that other clients are dropped."""
    ranges: dict[Frontend, list[str]] = {}
    for name in ("LOAD-BALANCER-SOURCE-CIDR", "LOAD-BALANCER-SOURCE-IP"):
        for entry in known.entries.get(name, ()):
            ranges.setdefault(_frontend(entry), []).append(entry.split(",")[2])
    return {
        to: (Rule(verdict="drop", sources=tuple(ranges.get(to, ()))),)
        for to in known.frontends("LOAD-BALANCER-FW", "")
    }


def _marks(known: Sets, node: str, nat: RulesTable | None) -> Iterator[Rule]:
    """Yield what marks packets for masquerade: sets for everyone, and that of cluster IPs."""
    local = _frontends(known, ("LOAD-BALANCER-LOCAL", *_NODE_PORTS_LOCAL), node)
    wanted = ("EXTERNAL-IP", "LOAD-BALANCER", *_NODE_PORTS)
    everyone = _frontends(known, wanted, node) - local
    yield Rule(table=dict.fromkeys(everyone, (Rule(mark=True),)))
    marked = (Rule(mark=True),)
    cluster_ips = dict.fromkeys(known.frontends("CLUSTER-IP", node), marked)
    for rule in nat.rules if nat else ():
        words = words_of(rule)
        in_set = words.get("--match-set")
        if (
            words.get("-A") == _SERVICES
            and in_set.endswith("-CLUSTER-IP")
            and words.get("-j") == names.MARK_MASQUERADE
        ):
            yield Rule(clients=_clients(rule), table=cluster_ips)


def _clients(rule: str) -> frozenset[str]:
    """Return whose packets to cluster IPs are masqueraded."""
    words = words_of(rule)
    if "dst,dst" not in rule:
        # For those who use a node as a router, where the pods' range is not known.
        raise UnreadableRules(
            f"kube-proxy's rule {rule!r} does not ask for the destination",
            "give kube-proxy the range of pods: --cluster-cidr",
        )
    for option in ("-s", "-i"):
        if words.get(option):
            return frozenset({"node", "other"} if option in words.negated else {"pod"})
    return EVERYONE
