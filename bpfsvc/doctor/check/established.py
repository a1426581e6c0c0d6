"""Check what ``--fast-path established`` would bypass. Pure.

Netfilter sees how a connection begins and ends, and a packet of each direction again and again. So
rules that drop or translate whole connections do not forbid it. Rules that may have to see each
packet do (:mod:`bpfsvc.doctor.check.each_packet`), and so do policies that are enforced elsewhere
than in netfilter.
"""

from __future__ import annotations

from collections.abc import Iterator

from bpfsvc.base.texts import count_text
from bpfsvc.doctor.check.each_packet import iptables_each_packet
from bpfsvc.doctor.facts import POLICY_PINS, FastPathFacts
from bpfsvc.migration.netfilter.iptables import RulesTable

OTHER_POLICY_DEVICES = {
    "cilium_": "Cilium",
    "antrea-gw": "Antrea",
    "ovn-k8s": "OVN-Kubernetes",
    "ovn0": "Kube-OVN",
    "bpfin.cali": "Calico's eBPF data plane",
}
"""Prefixes of interfaces -> programs that do not enforce policies by netfilter."""


def established_obstacles(facts: FastPathFacts) -> Iterator[str]:
    """Yield why the mode must not be used, the clearest reason first."""
    for prefix, program in OTHER_POLICY_DEVICES.items():
        named = sorted(name for name in facts.devices if name.startswith(prefix))
        if named:
            yield f"{program} may enforce network policies here ({named[0]}), and not by netfilter"
    for pin in sorted(facts.pinned):
        yield f"{POLICY_PINS[pin]} may enforce network policies here, and not by netfilter"
    for flavour, table in facts.tables:
        yield from each_packet_obstacles(flavour, table)
    yield from facts.each_packet
    yield from rule_obstacles(facts)
    yield from ipsec_obstacles(facts)


def established_objections(facts: FastPathFacts) -> Iterator[str]:
    """Yield the obstacles, and last what cannot be checked."""
    yield from established_obstacles(facts)
    yield from facts.unseen
    if not facts.tracks:
        yield "netfilter tracks no connections here, so none is established there"


def each_packet_obstacles(flavour: str, table: RulesTable) -> Iterator[str]:
    """Yield the first rule of a table that may have to see each packet."""
    if rule := iptables_each_packet(table):
        yield f"a rule in {flavour} may have to see each packet: {rule}"


def rule_obstacles(facts: FastPathFacts) -> Iterator[str]:
    """Yield the route rules that packets would not follow."""
    for rule in facts.route_rules:
        yield f"a route rule asks for more than addresses: {rule}"


def ipsec_obstacles(facts: FastPathFacts) -> Iterator[str]:
    """Yield that the stack would encrypt packets, and the fast path does not."""
    if facts.ipsec:
        yield (
            f"{count_text(facts.ipsec, 'IPsec policy', 'IPsec policies')} may apply,"
            " and packets would leave unencrypted"
        )
