"""What speaks against the fast path on a node, and which interfaces take part in it."""

from __future__ import annotations

import struct
from typing import Any

import pytest

from bpfsvc.address import pack
from bpfsvc.datapath.netlink.devices import Device, DeviceAddress, Network, leads_to_pod
from bpfsvc.datapath.netlink.xfrm import read_counts
from bpfsvc.doctor.finding import Level
from bpfsvc.doctor.judging.fastpath import doubts, judge
from bpfsvc.doctor.looking.fastpath import read_chains
from bpfsvc.doctor.sightings import Chain, Guards
from bpfsvc.takeover.rules import read_tables

KUBE_PROXY = """*filter
:INPUT ACCEPT [0:0]
:FORWARD ACCEPT [0:0]
:OUTPUT ACCEPT [0:0]
:KUBE-FIREWALL - [0:0]
:KUBE-FORWARD - [0:0]
:KUBE-PROXY-FIREWALL - [0:0]
:KUBE-SERVICES - [0:0]
-A INPUT -j KUBE-FIREWALL
-A FORWARD -m comment --comment "kubernetes forwarding rules" -j KUBE-FORWARD
-A FORWARD -m conntrack --ctstate NEW -j KUBE-PROXY-FIREWALL
-A OUTPUT -j KUBE-FIREWALL
-A KUBE-FIREWALL ! -s 127.0.0.0/8 -d 127.0.0.0/8 -j DROP
-A KUBE-FORWARD -m conntrack --ctstate INVALID -j DROP
-A KUBE-PROXY-FIREWALL -j DROP
COMMIT
"""
"""What kube-proxy and a kubelet leave: no forwarded packet of ours is stopped by it."""


def ruled(*rules: str, table: str = "filter", policy: str = "ACCEPT") -> Guards:
    """Give a node with rules of iptables; chains are those that the rules name."""
    chains = {rule.split()[0] for rule in rules} | {"FORWARD"}
    built_in = {"INPUT", "FORWARD", "OUTPUT", "PREROUTING", "POSTROUTING"}
    lines = [
        f"*{table}",
        *(f":{chain} {policy if chain in built_in else '-'} [0:0]" for chain in sorted(chains)),
        *(f"-A {rule}" for rule in rules),
        "COMMIT",
    ]
    return Guards(
        tables=tuple(("iptables (nft), IPv4", one) for one in read_tables("\n".join(lines)))
    )


def plain(**attributes: Any) -> Guards:
    """Give a node with some signs, and kube-proxy's leftovers as on most."""
    tables = tuple(("iptables (legacy), IPv4", one) for one in read_tables(KUBE_PROXY))
    return Guards(**{"tables": tables, **attributes})


HARMLESS = {
    "nothing at all": Guards(),
    "what kube-proxy and the kubelet leave": plain(),
    "a rule against invalid packets": ruled("FORWARD -m conntrack --ctstate INVALID -j DROP"),
    "the same in an older spelling": ruled("FORWARD -m state --state INVALID -j DROP"),
    "rules that accept": ruled("FORWARD -s 10.244.0.0/16 -j ACCEPT"),
    "a firewall of the node's own sockets": ruled("INPUT -p tcp -j GUARD", "GUARD -j DROP"),
    "a chain that nobody calls": ruled("GUARD -j DROP"),
    "the words of a rule's comment": ruled('FORWARD -m comment --comment "-j DROP" -j ACCEPT'),
    "a CNI's masquerade": ruled("POSTROUTING -s 10.244.0.0/16 -j MASQUERADE", table="nat"),
    "kube-proxy's nftables": Guards(chains=(Chain("ip", "kube-proxy", "filter-forward"),)),
    "what iptables made in nftables": Guards(chains=(Chain("ip", "filter", "FORWARD"),)),
    "interfaces of pods": plain(devices=frozenset({"eth0", "cni0", "veth1234"})),
}

GUARDED = {
    "a rule that drops": (ruled("FORWARD -s 10.9.0.0/16 -j DROP"), "-s 10.9.0.0/16"),
    "one that rejects": (ruled("FORWARD -j REJECT --reject-with tcp-reset"), "REJECT"),
    "one that asks a program": (ruled("FORWARD -j NFQUEUE --queue-num 1"), "NFQUEUE"),
    "one that diverts": (ruled("PREROUTING -j TPROXY --on-port 1", table="mangle"), "TPROXY"),
    "one in a chain that is called": (ruled("FORWARD -j GUARD", "GUARD -j DROP"), "GUARD"),
    "one for invalid and others": (
        ruled("FORWARD -m conntrack --ctstate INVALID,NEW -j DROP"),
        "INVALID,NEW",
    ),
    "a policy that drops": (ruled(policy="DROP"), "policy of FORWARD"),
    "Calico without a rule yet": (ruled("cali-FORWARD -j ACCEPT"), "Calico"),
    "Calico's interfaces": (plain(devices=frozenset({"eth0", "cali0123456789a"})), "Calico"),
    "kube-router": (ruled("KUBE-POD-FW-ABC -j ACCEPT"), "kube-router"),
    "Weave": (ruled("FORWARD -j WEAVE-NPC", "WEAVE-NPC -j ACCEPT"), "Weave"),
    "the AWS agent": (
        Guards(pinned=frozenset({"globals/aws/maps/global_aws_conntrack_map"})),
        "AWS",
    ),
    "a filter of nftables": (Guards(chains=(Chain("inet", "guard", "fwd"),)), "inet guard fwd"),
    "IPsec": (Guards(ipsec=3), "3 IPsec policies"),
    "rules that cannot be seen": (Guards(unseen=("nft is not installed",)), "not installed"),
}  # fmt: skip


@pytest.mark.parametrize("node", HARMLESS.values(), ids=HARMLESS)
def test_what_stops_no_packet_is_no_reason(node: Guards) -> None:
    assert list(doubts(node)) == []
    assert [each.level for each in judge(node)] == [Level.OK]


@pytest.mark.parametrize(("node", "word"), GUARDED.values(), ids=GUARDED)
def test_whoever_might_stop_a_packet_is_one(node: Guards, word: str) -> None:
    found = list(doubts(node))
    assert any(word in text for text in found)
    assert {each.level for each in judge(node)} == {Level.NOTE}


def test_one_who_is_seen_in_two_ways_is_told_once() -> None:
    calico = ruled("FORWARD -j cali-FORWARD", "cali-FORWARD -j ACCEPT")
    assert len(list(doubts(calico._replace(devices=frozenset({"cali1", "cali2"}))))) == 1


def test_of_nftables_the_filters_of_forwarded_packets_count() -> None:
    listed = """{"nftables": [{"metainfo": {"version": "1.0.6"}},
        {"chain": {"family": "inet", "table": "a", "name": "f", "type": "filter",
                   "hook": "forward", "policy": "accept"}},
        {"chain": {"family": "inet", "table": "a", "name": "i", "type": "filter", "hook": "input"}},
        {"chain": {"family": "inet", "table": "a", "name": "n", "type": "nat",
                   "hook": "postrouting"}},
        {"chain": {"family": "netdev", "table": "b", "name": "x", "type": "filter",
                   "hook": "ingress"}},
        {"chain": {"family": "bridge", "table": "b", "name": "y", "type": "filter",
                   "hook": "forward"}},
        {"chain": {"family": "inet", "table": "a", "name": "plain"}}]}"""
    assert list(read_chains(listed)) == [Chain("inet", "a", "f"), Chain("netdev", "b", "x")]


def test_policies_of_ipsec_are_counted_that_encrypt() -> None:
    """Those for what comes in, and those of sockets, do not."""
    header = struct.pack("=IHHIIIHH", 48, 0x24, 0, 1, 0, 0, 28, 1)
    assert read_counts(header + struct.pack("=6I", 7, 2, 1, 9, 9, 9)) == 3
    with pytest.raises(OSError, match="cannot be counted"):
        read_counts(struct.pack("=IHHIIi", 36, 2, 0, 1, 0, -1))


def device(**attributes: Any) -> Device:
    """Make the node's end of a pod's veth."""
    values: dict[str, Any] = {
        "index": 7,
        "name": "veth1",
        "kind": "veth",
        "master": 0,
        "up": True,
        "hardware": 1,
        "addresses": (),
        "peer_elsewhere": True,
        "queue": "noqueue",
    }
    return Device(**{**values, **attributes})


def address(text: str, prefix: int, scope: int = 0) -> DeviceAddress:
    return DeviceAddress(pack(text), prefix, scope, True)


PODS = {
    "a veth": device(),
    "with the gateway's own address": device(addresses=(address("10.244.1.1", 32),)),
    "with an address of the link": device(addresses=(address("fe80::1", 64, 253),)),
}

NO_PODS = {
    "a port of a bridge": device(master=3),
    "hardware": device(kind=""),
    "both ends in one namespace": device(peer_elsewhere=False),
    "its traffic is shaped": device(queue="tbf"),
    "on a network": device(addresses=(address("172.18.0.2", 16),)),
    "on a network of IPv6": device(addresses=(address("fd00::2", 64),)),
    "the default route's": device(index=2),
    "without Ethernet": device(hardware=0xFFFE),
}


@pytest.mark.parametrize("pod", PODS.values(), ids=PODS)
def test_a_pod_behind_a_veth_is_entered_straight(pod: Device) -> None:
    assert leads_to_pod(pod, Network((pod,), 2, 2))


@pytest.mark.parametrize("other", NO_PODS.values(), ids=NO_PODS)
def test_others_are_not(other: Device) -> None:
    assert not leads_to_pod(other, Network((other,), 2, 2))
