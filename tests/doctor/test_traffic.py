"""Rules that drop forwarded packets to endpoints, and backends that fail."""

from __future__ import annotations

import json
from typing import Any

import pytest

from bpfsvc.base.address import pack
from bpfsvc.base.protocols import PROTOCOLS
from bpfsvc.doctor.check.forward_rules import dropping_in_iptables, dropping_in_nftables
from bpfsvc.doctor.check.traffic import check_traffic
from bpfsvc.doctor.facts import (
    DroppingRule,
    FailingBackends,
    Fullness,
    ServedFrontend,
    TrafficFacts,
)
from bpfsvc.doctor.finding import Finding, Level
from bpfsvc.migration.netfilter.iptables import read_tables
from bpfsvc.migration.netfilter.nftables import read_listing
from bpfsvc.services.entries import Frontend
from tests.migration.values import place

WEB = ServedFrontend(
    "shop/web:http",
    Frontend(*place("10.96.0.10:80"), PROTOCOLS["TCP"]),
    (pack("10.96.0.10"),),
    (place("10.244.1.11:8080"), place("10.244.2.12:8080")),
)


def iptables(*rules: str, family: int = 4) -> tuple[DroppingRule, ...]:
    chains = {rule.split()[0] for rule in rules} - {"FORWARD"}
    heads = [":FORWARD ACCEPT [0:0]", *(f":{chain} - [0:0]" for chain in sorted(chains))]
    text = "\n".join(["*filter", *heads, *(f"-A {rule}" for rule in rules), "COMMIT"])
    return tuple(
        dropping_in_iptables("iptables (nft), IPv4", "iptables-nft", family, read_tables(text))
    )


def findings(**facts: Any) -> list[Finding]:
    return list(check_traffic(TrafficFacts(frontends=(WEB,), seconds=97, asked=True, **facts)))


def warned(dropping: tuple[DroppingRule, ...]) -> list[Finding]:
    return [one for one in findings(dropping=dropping) if one.level is Level.WARNING]


@pytest.mark.parametrize(
    "rules",
    [
        ["FORWARD -p tcp -m tcp --dport 8080 -j DROP"],
        ["FORWARD -d 10.244.1.0/24 -j REJECT --reject-with icmp-port-unreachable"],
        ['FORWARD -o veth+ -m comment --comment "no pods" -j DROP'],
        ["FORWARD -j DROP"],
        ["FORWARD -j OWN", "OWN -p tcp -m multiport --dports 80,8080 -j DROP"],
        ["FORWARD -m conntrack --ctstate RELATED,ESTABLISHED -j ACCEPT", "FORWARD -j DROP"],
    ],
)
def test_a_rule_that_drops_packets_to_endpoints_is_named_with_what_removes_it(
    rules: list[str],
) -> None:
    (finding,) = warned(iptables(*rules))
    assert "shop/web:http (10.96.0.10:80/TCP)" in finding.text
    assert f"-A {rules[-1]}" in finding.text
    assert finding.hint.endswith(f"iptables-nft -w -t filter -D {rules[-1]}")


@pytest.mark.parametrize(
    "rules",
    [
        ["FORWARD -p tcp --dport 9999 -j DROP"],
        ["FORWARD -p udp --dport 8080 -j DROP"],
        ["FORWARD -d 10.9.0.0/16 -j DROP"],
        ["FORWARD -m conntrack --ctstate INVALID -j DROP"],
        ["FORWARD -s 10.9.0.1/32 -j DROP"],
        ["FORWARD ! -i eth0 -j DROP"],
        ["FORWARD -m mark --mark 0x1/0x1 -j DROP"],
        ["FORWARD -d 10.244.0.0/16 -j ACCEPT", "FORWARD -j DROP"],
        ["FORWARD -m mark --mark 0x1/0x1 -j ACCEPT", "FORWARD -j DROP"],
        ["FORWARD -j OWN", "OWN -j RETURN", "OWN -j DROP"],
    ],
)
def test_a_rule_that_may_never_see_such_a_packet_is_not_named(rules: list[str]) -> None:
    assert warned(iptables(*rules)) == []


def nftables(*rules: list[dict[str, Any]]) -> tuple[DroppingRule, ...]:
    chain = {"family": "inet", "table": "own", "name": "forward", "handle": 1}
    base = {**chain, "type": "filter", "hook": "forward", "prio": 0, "policy": "accept"}
    listed = [
        {"rule": {"family": "inet", "table": "own", "chain": "forward", "handle": n, "expr": rule}}
        for n, rule in enumerate(rules, 5)
    ]
    text = "\n".join(f"\t\trule {n} # handle {n}" for n, _ in enumerate(rules, 5))
    listing = read_listing(json.dumps({"nftables": [{"chain": base}, *listed]}))
    return tuple(dropping_in_nftables(listing, text))


PORT = {
    "match": {
        "op": "==",
        "left": {"payload": {"protocol": "tcp", "field": "dport"}},
        "right": 8080,
    }
}
STATE = {"match": {"op": "in", "left": {"ct": {"key": "state"}}, "right": "invalid"}}
MARK = {"match": {"op": "==", "left": {"meta": {"key": "mark"}}, "right": 1}}


def test_rules_of_nftables_are_removed_by_their_handle() -> None:
    (finding,) = warned(nftables([PORT, {"counter": None}, {"drop": None}]))
    assert "nftables: inet own, forward" in finding.text
    assert finding.hint.endswith("nft delete rule inet own forward handle 5")


@pytest.mark.parametrize("before", [STATE, MARK])
def test_rules_of_nftables_that_look_at_more_than_the_destination_are_not_named(
    before: dict[str, Any],
) -> None:
    assert warned(nftables([before, {"drop": None}])) == []


def test_a_target_port_that_no_pod_answers_at_is_refused_by_every_backend() -> None:
    backends = ("10.244.1.11:9999", "10.244.2.12:9999")
    (finding,) = findings(
        failing=(FailingBackends("shop/web:http", backends, 2, "refused", 12, 12),)
    )
    assert finding.level is Level.WARNING
    assert "12 of 12 connections to every backend failed in the last 97 s: refused" in finding.text
    assert "no pod listens at port 9999: compare the targetPort" in finding.hint
    assert "kubectl -n shop get service web -o yaml" in finding.hint


def test_one_backend_that_does_not_answer_is_named() -> None:
    (finding,) = findings(
        failing=(FailingBackends("shop/web:http", ("10.244.1.11:80",), 4, "unanswered", 9, 40),)
    )
    assert "9 of 40 connections to 10.244.1.11:80 failed" in finding.text
    assert "bpfsvc.io/quarantine" in finding.hint


@pytest.mark.parametrize(
    ("field", "words"),
    [
        ("rejected__no_endpoints", "12 rejected in the last 97 s, because it has no endpoints"),
        ("dropped__source_range", "the client is in none of its source ranges"),
        ("dropped__no_endpoints", "its traffic policy is Local, and no ready pod is on this node"),
    ],
)
def test_what_bpfsvc_itself_refuses_has_its_reason(field: str, words: str) -> None:
    (finding,) = findings(refused=(("shop/web:http", field, 12),))
    assert words in finding.text
    assert "shop" in finding.hint or "Local" in finding.text


def test_where_nothing_fails_that_is_said_and_nothing_without_an_agent() -> None:
    assert [one.level for one in findings()] == [Level.OK]
    assert list(check_traffic(TrafficFacts())) == []
    (unasked,) = check_traffic(TrafficFacts(agent_runs=True))
    assert unasked.level is Level.NOTE


def test_a_table_near_its_limit_is_named_with_what_enlarges_it() -> None:
    full = Fullness("map connections", 850, 1000, "--max-connections")
    roomy = Fullness("map frontends", 10, 1000, "--max-frontends")
    _, finding = findings(tables=(full, roomy))
    assert "map connections holds 850 of 1000 entries" in finding.text
    assert "--max-connections" in finding.hint
