"""What forbids the fast path on a node, and which pod interfaces it can use."""

from __future__ import annotations

import socket
import struct
from typing import Any

import pytest

from bpfsvc.base.address import pack
from bpfsvc.datapath.netlink.devices import (
    LOOPBACK,
    Device,
    DeviceAddress,
    Interfaces,
    allows_fast_path,
    uplinks,
)
from bpfsvc.datapath.netlink.route_rules import Rule, unfollowed, unfollowed_rules
from bpfsvc.datapath.netlink.xfrm import read_counts
from bpfsvc.devtools.lab.namespace import Namespace
from bpfsvc.doctor.check.fast_path import check_fast_path, fast_path_objections
from bpfsvc.doctor.collect.fast_path import filtering_chains
from bpfsvc.doctor.facts import FastPathFacts
from bpfsvc.doctor.finding import Level
from bpfsvc.migration.netfilter.iptables import read_tables
from bpfsvc.migration.netfilter.nftables import Chain, read_listing

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
"""Rules that kube-proxy and a kubelet leave; they stop no packet that bpfsvc forwards."""


def ruled(*rules: str, table: str = "filter", policy: str = "ACCEPT") -> FastPathFacts:
    """Return a node with rules of iptables; the chains are those in the rules."""
    chains = {rule.split()[0] for rule in rules} | {"FORWARD"}
    built_in = {"INPUT", "FORWARD", "OUTPUT", "PREROUTING", "POSTROUTING"}
    lines = [
        f"*{table}",
        *(f":{chain} {policy if chain in built_in else '-'} [0:0]" for chain in sorted(chains)),
        *(f"-A {rule}" for rule in rules),
        "COMMIT",
    ]
    return FastPathFacts(
        tables=tuple(("iptables (nft), IPv4", table) for table in read_tables("\n".join(lines)))
    )


def plain(**attributes: Any) -> FastPathFacts:
    """Return a node with some facts, and kube-proxy's leftovers as on most nodes."""
    tables = tuple(("iptables (legacy), IPv4", table) for table in read_tables(KUBE_PROXY))
    return FastPathFacts(**{"tables": tables, **attributes})


def masquerading(*spared: str, pods: str = "10.244.0.0/16") -> FastPathFacts:
    """Return a node where a CNI plugin masquerades what a pod sends, but to these networks."""
    rules = ruled(
        "POSTROUTING -s 10.244.1.7/32 -j CNI-0123456789abcdef",
        *(f"CNI-0123456789abcdef -d {network} -j ACCEPT" for network in spared),
        "CNI-0123456789abcdef ! -d 224.0.0.0/4 -j MASQUERADE",
        table="nat",
    )
    return rules._replace(pods=(pods, "fd44::/16"))


HARMLESS = {
    "nothing at all": FastPathFacts(),
    "what kube-proxy and the kubelet leave": plain(),
    "a rule against invalid packets": ruled("FORWARD -m conntrack --ctstate INVALID -j DROP"),
    "the same in an older spelling": ruled("FORWARD -m state --state INVALID -j DROP"),
    "rules that accept": ruled("FORWARD -s 10.244.0.0/16 -j ACCEPT"),
    "a firewall of the node's own sockets": ruled("INPUT -p tcp -j GUARD", "GUARD -j DROP"),
    "a chain that no rule calls": ruled("GUARD -j DROP"),
    "the words of a rule's comment": ruled('FORWARD -m comment --comment "-j DROP" -j ACCEPT'),
    "a CNI's masquerade": ruled("POSTROUTING -s 10.244.0.0/16 -j MASQUERADE", table="nat"),
    "a CNI's masquerade that spares all pods": masquerading("10.244.0.0/16"),
    "a CNI's masquerade on the only node": masquerading("10.244.1.0/24", pods="10.244.1.0/24"),
    "a CNI's masquerade of hostPorts": ruled(
        "POSTROUTING -j CNI-HOSTPORT-MASQ",
        "CNI-HOSTPORT-MASQ -m mark --mark 0x2000/0x2000 -j MASQUERADE",
        table="nat",
    )._replace(pods=("10.244.0.0/16",)),
    "what iptables made in nftables": ruled()._replace(chains=(Chain("ip", "filter", "FORWARD"),)),
    "interfaces of pods": plain(devices=frozenset({"eth0", "cni0", "veth1234"})),
}

GUARDED = {
    "a rule that drops": (ruled("FORWARD -s 10.9.0.0/16 -j DROP"), "-s 10.9.0.0/16"),
    "one that rejects": (ruled("FORWARD -j REJECT --reject-with tcp-reset"), "REJECT"),
    "one that drops all but invalid packets": (
        ruled("FORWARD -m conntrack ! --ctstate INVALID -j DROP"),
        "stops packets",
    ),
    "one that asks a program": (ruled("FORWARD -j NFQUEUE --queue-num 1"), "NFQUEUE"),
    "one that diverts": (ruled("PREROUTING -j TPROXY --on-port 1", table="mangle"), "TPROXY"),
    "one in a chain that is called": (ruled("FORWARD -j GUARD", "GUARD -j DROP"), "GUARD"),
    "one for invalid and others": (
        ruled("FORWARD -m conntrack --ctstate INVALID,NEW -j DROP"),
        "INVALID,NEW",
    ),
    "one that shortens segments": (
        ruled("FORWARD -p tcp -m tcp --tcp-flags SYN,RST SYN -j TCPMSS --clamp-mss-to-pmtu"),
        "TCPMSS",
    ),
    "one that chooses a queue": (
        ruled("POSTROUTING -p tcp -j CLASSIFY --set-class 0001:0010", table="mangle"),
        "changes packets",
    ),
    "one that iptables cannot read": (ruled("FORWARD -p tcp"), "only nft understands"),
    "chains of nft with the names of iptables' chains": (
        plain(chains=(Chain("ip", "filter", "FORWARD"),)),
        "ip filter FORWARD",
    ),
    "a chain of another priority than iptables' chains": (
        ruled()._replace(chains=(Chain("ip", "filter", "FORWARD", 10),)),
        "ip filter FORWARD",
    ),
    "a chain of IPv6, where iptables reads IPv4 alone": (
        ruled()._replace(chains=(Chain("ip6", "filter", "FORWARD"),)),
        "ip6 filter FORWARD",
    ),
    "a CNI's masquerade by nftables": (
        FastPathFacts(chains=(Chain("inet", "cni_plugins_masquerade", "postrouting"),)),
        "masquerades between pods",
    ),
    "a policy that drops": (ruled(policy="DROP"), "policy of FORWARD"),
    "Calico without a rule yet": (ruled("cali-FORWARD -j ACCEPT"), "Calico"),
    "Calico's interfaces": (plain(devices=frozenset({"eth0", "cali0123456789a"})), "Calico"),
    "kube-router": (ruled("KUBE-POD-FW-ABC -j ACCEPT"), "kube-router"),
    "Weave": (ruled("FORWARD -j WEAVE-NPC", "WEAVE-NPC -j ACCEPT"), "Weave"),
    "the AWS agent": (
        FastPathFacts(pinned=frozenset({"globals/aws/maps/global_aws_conntrack_map"})),
        "AWS",
    ),
    "a filter of nftables": (
        FastPathFacts(chains=(Chain("inet", "guard", "fwd"),)),
        "inet guard fwd",
    ),
    "a CNI's masquerade between pods": (masquerading("10.244.1.0/24"), "CNI-0123456789abcdef"),
    "exceptions that are no network": (masquerading("10.0.0.0/255.0.255.0"), "CNI-01234567"),
    "kube-proxy's nftables": (
        FastPathFacts(chains=(Chain("ip", "kube-proxy", "filter-forward"),)),
        "kube-proxy",
    ),
    "kube-proxy's iptables": (
        ruled("KUBE-SERVICES -j KUBE-SVC-ABC", "KUBE-SVC-ABC -j KUBE-SEP-ABC", table="nat"),
        "kube-proxy",
    ),
    "kube-proxy's ipvs": (plain(devices=frozenset({"eth0", "kube-ipvs0"})), "kube-proxy"),
    "IPsec": (FastPathFacts(ipsec=3), "3 IPsec policies"),
    "rules that cannot be seen": (FastPathFacts(unseen=("nft is not installed",)), "not installed"),
}  # fmt: skip


@pytest.mark.parametrize("node", HARMLESS.values(), ids=HARMLESS)
def test_rules_that_stop_no_packet_are_no_obstacle(node: FastPathFacts) -> None:
    assert list(fast_path_objections(node)) == []
    assert [finding.level for finding in check_fast_path(node)] == [Level.OK]


@pytest.mark.parametrize(("node", "word"), GUARDED.values(), ids=GUARDED)
def test_rules_that_may_stop_a_packet_are_an_obstacle(node: FastPathFacts, word: str) -> None:
    objections = list(fast_path_objections(node))
    assert any(word in text for text in objections)
    assert {finding.level for finding in check_fast_path(node)} == {Level.NOTE}


def test_a_program_with_two_signs_is_reported_once() -> None:
    calico = ruled("FORWARD -j cali-FORWARD", "cali-FORWARD -j ACCEPT")
    assert (
        len(list(fast_path_objections(calico._replace(devices=frozenset({"cali1", "cali2"}))))) == 1
    )


def test_only_nftables_filters_of_forwarded_packets_count() -> None:
    listed = """{"nftables": [{"metainfo": {"version": "1.0.6"}},
        {"chain": {"family": "inet", "table": "a", "name": "f", "type": "filter",
                   "hook": "forward", "prio": 0, "policy": "accept"}},
        {"chain": {"family": "inet", "table": "a", "name": "i", "type": "filter",
                   "hook": "input", "prio": 0}},
        {"chain": {"family": "inet", "table": "a", "name": "n", "type": "nat",
                   "hook": "postrouting", "prio": 0}},
        {"chain": {"family": "netdev", "table": "b", "name": "x", "type": "filter",
                   "hook": "ingress", "prio": 0}},
        {"chain": {"family": "bridge", "table": "b", "name": "y", "type": "filter",
                   "hook": "forward", "prio": 0}},
        {"chain": {"family": "bridge", "table": "b", "name": "z", "type": "filter",
                   "hook": "prerouting", "prio": 0}},
        {"chain": {"family": "bridge", "table": "b", "name": "o", "type": "filter",
                   "hook": "output", "prio": 0}},
        {"chain": {"family": "inet", "table": "cni_plugins_masquerade", "name": "m", "type": "nat",
                   "hook": "postrouting", "prio": 0}},
        {"chain": {"family": "inet", "table": "a", "name": "plain"}}]}"""
    assert [chain[:3] for chain in filtering_chains(read_listing(listed))] == [
        ("inet", "a", "f"),
        ("netdev", "b", "x"),
        ("bridge", "b", "z"),
        ("bridge", "b", "o"),
        ("inet", "cni_plugins_masquerade", "m"),
    ]


def test_ipsec_policies_that_encrypt_are_counted() -> None:
    """Policies for incoming packets and of sockets are not counted."""
    header = struct.pack("=IHHIIIHH", 48, 0x24, 0, 1, 0, 0, 28, 1)
    assert read_counts(header + struct.pack("=6I", 7, 2, 1, 9, 9, 9)) == 3
    with pytest.raises(OSError, match="cannot be counted"):
        read_counts(struct.pack("=IHHIIi", 36, 2, 0, 1, 0, -1))


ASKS_FOR_INVALID = "FORWARD -m conntrack --ctstate INVALID -j DROP"


def test_answers_by_another_uplink_must_not_be_dropped_as_invalid() -> None:
    """The request was fast, so conntrack does not know what the answer belongs to."""
    node = ruled(ASKS_FOR_INVALID)
    assert list(fast_path_objections(node._replace(uplinks=("eth0",)))) == []
    (objection,) = fast_path_objections(node._replace(uplinks=("eth0", "eth1")))
    assert "another one of eth0, eth1 than requests leave by" in objection
    assert ASKS_FOR_INVALID in objection


def test_kube_proxys_rule_against_what_is_invalid_drops_such_answers_too() -> None:
    (objection,) = fast_path_objections(plain(uplinks=("eth0", "eth1")))
    assert "KUBE-FORWARD" in objection


@pytest.mark.parametrize(
    "rule",
    ["INPUT -m conntrack --ctstate INVALID -j DROP", "FORWARD -m state --state INVALID -j LOG"],
)
def test_other_rules_for_what_is_invalid_drop_no_answers(rule: str) -> None:
    assert list(fast_path_objections(ruled(rule)._replace(uplinks=("eth0", "eth1")))) == []


def test_route_rules_that_ask_for_more_than_addresses_forbid_the_fast_path() -> None:
    (objection,) = fast_path_objections(plain(route_rules=("IPv4 100: fwmark 0x77",)))
    assert objection == "a route rule asks for more than addresses: IPv4 100: fwmark 0x77"


RULES = {
    "fwmark 0x77 lookup 100": "IPv4 100: fwmark 0x77",
    "fwmark 0/1 lookup 100": "IPv4 100: fwmark 0x0",
    "not fwmark 0xca6c lookup 100": "",
    "not fwmark 0xca6c dport 53 lookup 100": "IPv4 100: fwmark 0xca6c dport 53:53",
    "ipproto tcp lookup 100": "IPv4 100: ipproto 6",
    "sport 1-9 lookup 100": "IPv4 100: sport 1:9",
    "from 10.1.0.0/16 to 10.2.0.0/16 iif lo tos 0x10 lookup 100": "",
    "uidrange 0-1 lookup 100": "",
}
"""What ``ip rule add`` takes -> how the rule is named, if the fast path does not follow it."""


@pytest.mark.parametrize(("rule", "named"), RULES.items(), ids=RULES)
def test_rules_of_the_kernel_are_read(rule: str, named: str) -> None:
    namespace = Namespace("rules")
    try:
        namespace.run(["ip", "rule", "add", "priority", "100", *rule.split()])
        with namespace.entered():
            assert unfollowed_rules() == ((named,) if named else ())
    finally:
        namespace.close()


def test_rules_of_ipv6_are_read() -> None:
    namespace = Namespace("rules")
    try:
        rule = ["priority", "7", "fwmark", "0x1/0xff", "lookup", "100"]
        namespace.run(["ip", "-6", "rule", "add", *rule])
        with namespace.entered():
            assert unfollowed_rules() == ("IPv6 7: fwmark 0x1",)
    finally:
        namespace.close()


def test_a_rule_for_a_flow_label_is_read() -> None:
    """From a message as kernels have it since Linux 6.13; the ``ip`` of Debian 12 makes none."""
    sent = Rule()
    sent.update(family=socket.AF_INET6, table=100, action=1)
    sent["attrs"] = [("FRA_PRIORITY", 7), ("FRA_FLOWLABEL", 0x12345)]
    sent.encode()
    read = Rule(sent.data)
    read.decode()
    assert [*unfollowed([read])] == ["7: flowlabel 0x12345"]


def test_uplinks_are_what_leads_to_other_machines() -> None:
    lan, host = (address("192.168.50.11", 24),), (address("10.244.1.1", 32),)
    bridged = (address("172.17.0.1", 16),)
    network = Interfaces(
        (
            device(index=1, name="lo", kind=LOOPBACK, addresses=(address("127.0.0.1", 8),)),
            device(index=2, name="eth0", kind="", addresses=lan),
            device(index=3, name="eth1", kind="veth", addresses=lan),
            device(index=4, name="bond0.7", kind="vlan", addresses=lan),
            device(index=5, name="unused", kind=""),
            device(index=6, name="down", kind="", up=False, addresses=lan),
            device(index=7, name="veth1", addresses=host),
            device(index=8, name="flannel.1", kind="vxlan", addresses=lan),
            device(index=9, name="kube-ipvs0", kind="dummy", addresses=lan),
            device(index=10, name="docker0", kind="bridge", addresses=bridged),
            device(index=11, name="veth2", master=10),
            device(index=12, name="br0", kind="bridge", addresses=lan),
            device(index=13, name="eth2", kind="", master=12),
        ),
        2,
        0,
    )
    assert [device.name for device in uplinks(network)] == ["eth0", "eth1", "bond0.7", "br0"]


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
    "netkit": device(kind="netkit"),
    "a port of a bridge": device(master=3),
    "with the gateway's own address": device(addresses=(address("10.244.1.1", 32),)),
    "with an address of the link": device(addresses=(address("fe80::1", 64, 253),)),
}

NO_PODS = {
    "a port of a bond": device(master=4),
    "a port of a bridge that shapes traffic": device(master=5),
    "a port of a bridge in a VRF": device(master=6),
    "hardware": device(kind=""),
    "both ends in one namespace": device(peer_elsewhere=False),
    "its traffic is shaped": device(queue="tbf"),
    "on a network": device(addresses=(address("172.18.0.2", 16),)),
    "on a network of IPv6": device(addresses=(address("fd00::2", 64),)),
    "the default route's": device(index=2),
    "netkit that drops all": device(kind="netkit", drops=True),
    "without Ethernet": device(hardware=0xFFFE),
}


MASTERS = (
    device(index=3, name="cni0", kind="bridge", queue="noqueue"),
    device(index=4, name="bond0", kind="bond"),
    device(index=5, name="cni1", kind="bridge", queue="tbf"),
    device(index=6, name="cni2", kind="bridge", master=7),
)


@pytest.mark.parametrize("pod", PODS.values(), ids=PODS)
def test_packets_go_directly_into_a_pod_behind_a_pair_of_interfaces(pod: Device) -> None:
    assert allows_fast_path(pod, Interfaces((pod, *MASTERS), 2, 2))


@pytest.mark.parametrize("other", NO_PODS.values(), ids=NO_PODS)
def test_packets_do_not_go_directly_into_other_interfaces(other: Device) -> None:
    assert not allows_fast_path(other, Interfaces((other, *MASTERS), 2, 2))
