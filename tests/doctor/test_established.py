"""What forbids ``--fast-path established``: where each packet of a connection counts."""

from __future__ import annotations

import json
import shutil
from collections.abc import Sequence
from typing import Any

import pytest

from bpfsvc.doctor.check.each_packet import nft_each_packet
from bpfsvc.doctor.check.established import established_objections, established_obstacles
from bpfsvc.doctor.check.fast_path import check_fast_path
from bpfsvc.doctor.collect import fast_path
from bpfsvc.doctor.collect.fast_path import ForwardingRules
from bpfsvc.doctor.facts import FastPathFacts
from bpfsvc.doctor.finding import Level
from bpfsvc.migration.netfilter import tools
from bpfsvc.migration.netfilter.nftables import Chain, Listing, read_listing
from tests.doctor.test_fast_path import masquerading, plain, ruled

ACCEPT_ESTABLISHED = "FORWARD -m conntrack --ctstate RELATED,ESTABLISHED -j ACCEPT"

HARMLESS = {
    "a rule that drops": ruled("FORWARD -s 10.9.0.0/16 -j DROP"),
    "a policy that drops": ruled(policy="DROP"),
    "Calico's chains": ruled("FORWARD -j cali-FORWARD", "cali-FORWARD -j DROP"),
    "Calico's interfaces": plain(devices=frozenset({"eth0", "cali0123456789a"})),
    "kube-router": ruled("FORWARD -j KUBE-POD-FW-ABC", "KUBE-POD-FW-ABC -j REJECT"),
    "Weave": ruled("FORWARD -j WEAVE-NPC", "WEAVE-NPC -j DROP"),
    "kube-proxy's iptables": ruled("KUBE-SERVICES -j KUBE-SVC-ABC", table="nat"),
    "filters of nftables": FastPathFacts(chains=(Chain("inet", "guard", "fwd"),)),
    "a masquerade between pods": masquerading("10.244.1.0/24"),
    "one that shortens the segments of a connection to be": ruled(
        "FORWARD -p tcp -m tcp --tcp-flags SYN,RST SYN -j TCPMSS --clamp-mss-to-pmtu"
    ),
    "a program that decides about new connections": ruled(
        "FORWARD -m conntrack --ctstate NEW -j NFQUEUE --queue-num 1"
    ),
    "a program that is asked about packets that are not established": ruled(
        "FORWARD -m conntrack ! --ctstate RELATED,ESTABLISHED -j NFQUEUE --queue-num 1"
    ),
    "a program that is asked after all that is established was accepted": ruled(
        ACCEPT_ESTABLISHED, "FORWARD -j NFQUEUE --queue-num 1"
    ),
    "the same with a comment": ruled(
        'FORWARD -m conntrack --ctstate RELATED,ESTABLISHED -m comment --comment "old ones"'
        " -j ACCEPT",
        "FORWARD -j NFQUEUE --queue-num 1",
    ),
    "the same with the comment first": ruled(
        'FORWARD -m comment --comment "-j DROP" -m conntrack --ctstate ESTABLISHED -j ACCEPT',
        "FORWARD -j NFQUEUE --queue-num 1",
    ),
    "a program that is asked after a chain has accepted all that is established": ruled(
        "FORWARD -j POLICY",
        "FORWARD -j NFQUEUE --queue-num 1",
        "POLICY -s 10.9.0.0/16 -j DROP",
        ACCEPT_ESTABLISHED.replace("FORWARD", "POLICY"),
    ),
    "new connections in turn": ruled(
        "PREROUTING -m statistic --mode nth --every 2 --packet 0 -j DNAT --to-destination 10.9.0.1",
        table="nat",
    ),
    "flags that no packet in the middle has": ruled(
        "FORWARD -p tcp -m tcp --tcp-flags FIN,SYN FIN,SYN -j DROP",
        "FORWARD -p tcp -m tcp ! --tcp-flags FIN,SYN,RST,ACK SYN -j ACCEPT",
    ),
    "a limit of new connections": ruled(
        "FORWARD -m conntrack --ctstate NEW -m limit --limit 10/sec -j ACCEPT"
    ),
    "a limit of log lines": ruled("FORWARD -m limit --limit 10/sec -j LOG"),
}

FORBIDDEN = {
    "a program that is asked about each packet": (
        ruled("FORWARD -j NFQUEUE --queue-num 1"),
        "NFQUEUE",
    ),
    "one in a chain that is called": (ruled("FORWARD -j IDS", "IDS -j NFQUEUE"), "NFQUEUE"),
    "a program that is asked before all that is established was accepted": (
        ruled("FORWARD -j NFQUEUE --queue-num 1", ACCEPT_ESTABLISHED),
        "NFQUEUE",
    ),
    "one after some that is established was accepted": (
        ruled(
            "FORWARD -s 10.9.0.0/16 -m conntrack --ctstate RELATED,ESTABLISHED -j ACCEPT",
            "FORWARD -j NFQUEUE --queue-num 1",
        ),
        "NFQUEUE",
    ),
    "a change of the traffic class": (
        ruled("FORWARD -p tcp -j DSCP --set-dscp 0x10", table="mangle"),
        "DSCP",
    ),
    "copies": (ruled("PREROUTING -j TEE --gateway 10.0.0.1", table="mangle"), "TEE"),
    "a rule after a chain that some packets leave before all that is established is accepted": (
        ruled(
            "FORWARD -j POLICY",
            "FORWARD -j NFQUEUE --queue-num 1",
            "POLICY -s 10.9.0.0/16 -j RETURN",
            ACCEPT_ESTABLISHED.replace("FORWARD", "POLICY"),
        ),
        "NFQUEUE",
    ),
    "a rule after a chain that only some packets meet": (
        ruled(
            "FORWARD -s 10.9.0.0/16 -j POLICY",
            "FORWARD -j NFQUEUE --queue-num 1",
            ACCEPT_ESTABLISHED.replace("FORWARD", "POLICY"),
        ),
        "NFQUEUE",
    ),
    "chains that call each other": (
        ruled("FORWARD -j A", "A -j B", "B -j A", "FORWARD -j NFQUEUE --queue-num 1"),
        "NFQUEUE",
    ),
    "a condition that is not known": (ruled("FORWARD -m newest --odd 1 -j DROP"), "newest"),
    "a target that is not known": (ruled("FORWARD -j NEWEST"), "NEWEST"),
    "what packets carry": (ruled("FORWARD -m u32 --u32 0x0=0x1 -j DROP"), "u32"),
    "a share of the packets": (
        ruled("FORWARD -m statistic --mode random --probability 0.5 -j MARK --set-xmark 0x1/0x1"),
        "statistic",
    ),
    "a set that counts packets": (
        ruled("FORWARD -m set --match-set clients src --packets-gt 9 -j DROP"),
        "packets-gt",
    ),
    "flags that a packet in the middle may have": (
        ruled("FORWARD -p tcp -m tcp --tcp-flags PSH PSH -j DROP"),
        "PSH",
    ),
    "a log of each packet": (ruled("FORWARD -j LOG"), "LOG"),
    "a rule that only counts": (ruled("FORWARD -s 10.9.0.0/16"), "10.9.0.0/16"),
    "a limit of packets": (ruled("FORWARD -m limit --limit 10/sec -j ACCEPT"), "limit"),
    "Cilium": (plain(devices=frozenset({"cilium_host"})), "Cilium"),
    "Antrea": (plain(devices=frozenset({"antrea-gw0"})), "Antrea"),
    "the AWS agent": (
        FastPathFacts(pinned=frozenset({"globals/aws/maps/global_aws_conntrack_map"})),
        "AWS",
    ),
    "IPsec": (FastPathFacts(ipsec=1), "IPsec"),
    "a route rule with a mark": (FastPathFacts(route_rules=("IPv4 7: fwmark 0x1",)), "fwmark"),
    "chains of nftables that see each packet": (
        FastPathFacts(each_packet=("nftables may have to see each packet in inet guard fwd",)),
        "inet guard fwd",
    ),
}


@pytest.mark.parametrize("node", HARMLESS.values(), ids=HARMLESS)
def test_rules_about_whole_connections_are_no_obstacle(node: FastPathFacts) -> None:
    assert list(established_objections(node)) == []


@pytest.mark.parametrize(("node", "word"), FORBIDDEN.values(), ids=FORBIDDEN)
def test_what_has_to_see_each_packet_is_an_obstacle(node: FastPathFacts, word: str) -> None:
    obstacles = list(established_obstacles(node))
    assert any(word in text for text in obstacles)


def test_without_connections_of_netfilter_it_is_not_begun_and_not_given_up() -> None:
    """On a quiet node there may be none for a moment."""
    node = FastPathFacts(tracks=False)
    assert [text for text in established_objections(node) if "tracks no connections" in text]
    assert list(established_obstacles(node)) == []


def test_the_doctor_names_the_level_that_is_used() -> None:
    policies = ruled("FORWARD -s 10.9.0.0/16 -j DROP")
    findings = list(check_fast_path(policies))
    assert [finding.level for finding in findings] == [Level.NOTE, Level.NOTE]
    assert "gets the level established" in findings[1].text
    findings = list(check_fast_path(ruled("FORWARD -j NFQUEUE --queue-num 1")))
    assert [finding.level for finding in findings] == [Level.NOTE] * 3
    assert "all packets to the stack" in findings[2].text


# -- nftables: as `nft -j list table` writes the rules --

STATE = {"ct": {"key": "state"}}
QUEUE: dict[str, Any] = {"queue": {"num": 1}}
COUNTER: dict[str, Any] = {"counter": {"packets": 1, "bytes": 1}}
ACCEPT: dict[str, Any] = {"accept": None}
ESTABLISHED = {"match": {"op": "in", "left": STATE, "right": ["established", "related"]}}
NEW = {"match": {"op": "in", "left": STATE, "right": "new"}}
SOURCE = {
    "match": {
        "op": "==",
        "left": {"payload": {"protocol": "ip", "field": "saddr"}},
        "right": "10.9.0.1",
    }
}
STATES = {
    "vmap": {
        "key": STATE,
        "data": {"set": [["invalid", {"drop": None}], ["established", ACCEPT]]},
    }
}
JUMPS = {"vmap": {"key": STATE, "data": {"set": [["new", {"jump": {"target": "other"}}]]}}}


def mangle(key: dict[str, Any]) -> dict[str, Any]:
    """Return a statement that changes something."""
    return {"mangle": {"key": key, "value": 1}}


def flags(name: str) -> dict[str, Any]:
    """Return a condition on TCP's flags."""
    left = {"payload": {"protocol": "tcp", "field": "flags"}}
    return {"match": {"op": "in", "left": left, "right": name}}


NFT_HARMLESS = {
    "verdicts": [[ESTABLISHED, ACCEPT], [SOURCE, ACCEPT], [{"drop": None}]],
    "a queue for new ones": [[NEW, QUEUE]],
    "a queue after the others are accepted": [[ESTABLISHED, COUNTER, ACCEPT], [QUEUE]],
    "the same by a map": [[STATES], [QUEUE]],
    "a mark": [[mangle({"meta": {"key": "mark"}})]],
    "shorter segments": [[mangle({"tcp option": {"name": "maxseg", "field": "size"}})]],
    "an address, a port and a mark": [
        [
            {"match": {"op": "==", "left": {"meta": {"key": "l4proto"}}, "right": "tcp"}},
            SOURCE,
            {"mangle": {"key": {"ct": {"key": "mark"}}, "value": 1}},
        ]
    ],
    "flags that no packet in the middle has": [[flags("syn"), {"drop": None}]],
    "a queue after a chain that accepts what is established": [
        [COUNTER, {"jump": {"target": "accepting"}}],
        [QUEUE],
    ],
    "a limited log": [[{"limit": {"rate": 1, "per": "second"}}, {"log": None}]],
}

NFT_FORBIDDEN = {
    "a queue": [[COUNTER, QUEUE]],
    "a queue after some are accepted": [[SOURCE, ESTABLISHED, ACCEPT], [QUEUE]],
    "copies": [[{"dup": {"addr": "10.0.0.1"}}]],
    "a limit": [[{"limit": {"rate": 1, "per": "second"}}, ACCEPT]],
    "a counter with a name": [[{"counter": "of-pods"}]],
    "a log of each packet": [[{"log": None}]],
    "a limit with a log": [
        [{"limit": {"rate": 1, "per": "second"}}, {"log": None}, {"drop": None}]
    ],
    "the length of packets": [
        [{"match": {"op": ">", "left": {"meta": {"key": "length"}}, "right": 9}}, {"drop": None}]
    ],
    "the bytes of a connection": [
        [{"match": {"op": ">", "left": {"ct": {"key": "bytes"}}, "right": 9}}, {"drop": None}]
    ],
    "bytes at a place": [
        [
            {
                "match": {
                    "op": "==",
                    "left": {"payload": {"base": "th", "offset": 96, "len": 8}},
                    "right": 9,
                }
            },
            {"drop": None},
        ]
    ],
    "flags that a packet in the middle may have": [[flags("psh"), {"drop": None}]],
    "a share of the packets": [
        [
            {
                "vmap": {
                    "key": {"numgen": {"mode": "random", "mod": 2}},
                    "data": {"set": [[0, {"drop": None}]]},
                }
            }
        ]
    ],
    "a statement that is not known": [[{"newest": None}]],
    "a quota": [[{"quota": {"val": 1, "val_unit": "mbytes"}}, {"drop": None}]],
    "a traffic class": [[mangle({"payload": {"protocol": "ip", "field": "dscp"}})]],
    "a priority": [[mangle({"meta": {"key": "priority"}})]],
    "a chain that is called": [[{"jump": {"target": "other"}}]],
    "one that is called by a map": [[JUMPS]],
    "one that is called by a map with a name": [[{"vmap": {"key": STATE, "data": "@verdicts"}}]],
}


def listed(rules: list[list[dict[str, Any]]]) -> Listing:
    """Return a table with these rules in ``fwd``, and chains that it may call."""
    made = [{"rule": {"chain": "fwd", "expr": expr}} for expr in rules]
    made += [{"rule": {"chain": "other", "expr": [QUEUE]}}]
    made += [{"rule": {"chain": "accepting", "expr": [ESTABLISHED, ACCEPT]}}]
    return read_listing(json.dumps({"nftables": [{"metainfo": {}}, *made]}))


@pytest.mark.parametrize("rules", NFT_HARMLESS.values(), ids=NFT_HARMLESS)
def test_nftables_rules_about_whole_connections_are_no_obstacle(
    rules: list[list[dict[str, Any]]],
) -> None:
    assert nft_each_packet(listed(rules), ["fwd"]) == ""


@pytest.mark.parametrize("rules", NFT_FORBIDDEN.values(), ids=NFT_FORBIDDEN)
def test_nftables_rules_that_have_to_see_each_packet_are_found(
    rules: list[list[dict[str, Any]]],
) -> None:
    assert nft_each_packet(listed(rules), ["fwd"])


def test_all_tables_are_printed_only_where_it_is_asked_what_has_to_see_each_packet(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A table of policies may be large, and is read again with each of its changes."""
    asked: list[str] = []
    hook = {"type": "filter", "hook": "forward", "prio": 0, "policy": "accept"}
    chain = {"family": "inet", "table": "policies", "name": "forward", "handle": 1}

    def run(words: Sequence[str]) -> str:
        asked.append(" ".join(words[2:]).removeprefix("--terse "))
        return json.dumps({"nftables": [{"chain": chain | hook}] if "chains" in words else []})

    monkeypatch.setattr(fast_path, "_iptables_rules", lambda *_: ForwardingRules())
    monkeypatch.setattr(shutil, "which", lambda name: name)
    monkeypatch.setattr(tools, "run", run)
    rules = fast_path.read_nft_rules()
    assert [finding.table for finding in rules.chains] == ["policies"]
    assert asked == ["list chains"]
    assert fast_path.read_each_packet(rules.chains, rules.tables) == ForwardingRules()
    assert asked == ["list chains", "list table inet policies"]
