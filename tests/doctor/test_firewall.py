"""Which rules of a firewall no longer see packets to which Services."""

from __future__ import annotations

import json

import pytest

from bpfsvc.base.address import pack
from bpfsvc.base.protocols import PROTOCOLS
from bpfsvc.doctor.check.early_rules import read_iptables, read_nftables, set_names
from bpfsvc.doctor.check.firewall import check_firewall, firewall_warning
from bpfsvc.doctor.facts import FirewallFacts, PacketRule, ServedFrontend
from bpfsvc.doctor.finding import Level
from bpfsvc.migration.netfilter.iptables import read_tables
from bpfsvc.migration.netfilter.nftables import read_listing
from bpfsvc.services.entries import Frontend, frontend_text
from tests.migration.values import place


def served(service: str, frontend: str, backend: str, *addresses: str) -> ServedFrontend:
    asked = place(frontend.removesuffix("/TCP"))
    answers = tuple(map(pack, addresses)) or (asked[0],)
    return ServedFrontend(service, Frontend(*asked, PROTOCOLS["TCP"]), answers, (place(backend),))


NODEPORT = served("prod/web:http", "0.0.0.0:30080/TCP", "10.244.1.11:8080", "192.168.50.11")
BALANCED = served("prod/shop:https", "80.11.12.20:443/TCP", "10.244.1.12:443")
V6 = served("prod/web:http", "[2001:db8:80::20]:443/TCP", "[fd44::11]:8443")
PLACES = (NODEPORT, BALANCED, V6)
SETS = {"blocked": ["80.11.12.0/24"], "pairs": ["192.168.50.11,tcp:30080"], "others": ["10.9.0.1"]}


def saved(*rules: str, table: str = "raw") -> str:
    chains = {rule.split()[0] for rule in rules} | {"PREROUTING", "OUTPUT"}
    built_in = {"PREROUTING", "OUTPUT", "FORWARD", "INPUT", "POSTROUTING"}
    lines = [f":{chain} {'ACCEPT' if chain in built_in else '-'} [0:0]" for chain in sorted(chains)]
    return "\n".join([f"*{table}", *lines, *(f"-A {rule}" for rule in rules), "COMMIT"])


def iptables(*rules: str, table: str = "raw", family: int = 4) -> tuple[PacketRule, ...]:
    tables = read_tables(saved(*rules, table=table))
    return tuple(read_iptables("iptables", family, tables, SETS))


def lost(rules: tuple[PacketRule, ...]) -> set[str]:
    """Return the frontends that the findings name."""
    findings = list(check_firewall(FirewallFacts(rules, PLACES)))
    warnings = [finding for finding in findings if finding.level is Level.WARNING]
    texts = (frontend_text(served.frontend) for served in PLACES)
    return {text for text in texts if any(text in finding.text for finding in warnings)}


NAMED, VIP, BALANCED_V6 = ({frontend_text(served.frontend)} for served in (NODEPORT, BALANCED, V6))

LOST = {
    "a NodePort": (iptables("PREROUTING -p tcp -m tcp --dport 30080 -j DROP"), NAMED),
    "in mangle": (iptables("PREROUTING -p tcp --dport 30080 -j DROP", table="mangle"), NAMED),
    "several ports": (
        iptables("PREROUTING -p tcp -m multiport --dports 22,30000:30100 -j DROP"),
        NAMED,
    ),
    "a load balancer's address": (iptables("PREROUTING -d 80.11.12.20/32 -j DROP"), VIP),
    "its network": (iptables("PREROUTING -d 80.11.0.0/16 -i eth0 -j DROP"), VIP),
    "an exception from a rule": (iptables("PREROUTING -d 80.11.12.20/32 -j ACCEPT"), VIP),
    "of the node's own packets": (iptables("OUTPUT -d 80.11.12.20/32 -j DROP"), VIP),
    "in a chain that a rule for it calls": (
        iptables("PREROUTING -d 80.11.12.20/32 -j GUARD", "GUARD -s 203.0.113.0/24 -j DROP"),
        VIP,
    ),
    "Calico's preDNAT policies": (
        iptables(
            "PREROUTING -j cali-PREROUTING",
            "cali-PREROUTING -j cali-fh-eth0",
            "cali-fh-eth0 -j cali-pi-_kEnPi",
            'cali-pi-_kEnPi -p tcp -m comment --comment "cali:x" -m multiport'
            " --dports 30080 -j MARK --set-xmark 0x10000/0x10000",
            table="mangle",
        ),
        NAMED,
    ),
    "a set of addresses": (iptables("PREROUTING -m set --match-set blocked dst -j DROP"), VIP),
    "a set of addresses and ports": (
        iptables("PREROUTING -m set --match-set pairs dst,dst -j DROP"),
        NAMED,
    ),
    "IPv6": (iptables("PREROUTING -p tcp --dport 443 -j DROP", family=6), BALANCED_V6),
    "conntrack's original port, in any chain": (
        iptables("FORWARD -p tcp -m conntrack --ctorigdstport 30080 -j DROP", table="filter"),
        NAMED,
    ),
    "conntrack's original address": (
        iptables("FORWARD -m conntrack --ctorigdst 80.11.12.20 -j DROP", table="filter"),
        VIP,
    ),
}

KEPT = {
    "no rule": iptables(),
    "a rule for sources": iptables("PREROUTING -s 203.0.113.0/24 -j DROP"),
    "a rule for an interface": iptables("PREROUTING -i eth0 -m rpfilter --invert -j DROP"),
    "another port": iptables("PREROUTING -p tcp --dport 22 -j DROP"),
    "another protocol": iptables("PREROUTING -p udp --dport 30080 -j DROP"),
    "the port that the endpoints have too": iptables("PREROUTING -p tcp --dport 443 -j DROP"),
    "a network that has the endpoints too": iptables("PREROUTING -d 0.0.0.0/1 -j DROP"),
    "a destination that is excepted": iptables("PREROUTING ! -d 10.9.0.0/16 -j DROP"),
    "a set that has none of them": iptables("PREROUTING -m set --match-set others dst -j DROP"),
    "a set of sources": iptables("PREROUTING -m set --match-set blocked src -j DROP"),
    "NodeLocal DNSCache": iptables("PREROUTING -d 80.11.12.20/32 -p tcp -j CT --notrack"),
    "a mask with holes": iptables("PREROUTING -d 80.11.0.20/255.255.0.255 -j DROP"),
    "a chain that no rule calls": iptables("GUARD -d 80.11.12.20/32 -j DROP"),
    "a rule behind DNAT": iptables("FORWARD -p tcp --dport 30080 -j DROP", table="filter"),
    "kube-proxy's": iptables(
        "KUBE-FORWARD -m conntrack --ctorigdstport 30080 -j ACCEPT", table="filter"
    ),
}  # fmt: skip


@pytest.mark.parametrize(("rules", "frontends"), LOST.values(), ids=LOST)
def test_a_rule_of_iptables_that_names_a_frontend_is_lost(
    rules: tuple[PacketRule, ...], frontends: set[str]
) -> None:
    assert lost(rules) == frontends


@pytest.mark.parametrize("rules", KEPT.values(), ids=KEPT)
def test_a_rule_of_iptables_that_goes_on_to_apply_is_none(rules: tuple[PacketRule, ...]) -> None:
    facts = FirewallFacts(rules, PLACES)
    assert [finding.level for finding in check_firewall(facts)] == [Level.OK]
    assert firewall_warning(facts) == ""


def test_sets_are_read_only_where_they_have_destinations() -> None:
    tables = read_tables(
        saved(
            "PREROUTING -m set --match-set blocked dst -j DROP",
            "PREROUTING -m set --match-set clients src -j DROP",
            "PREROUTING -m set ! --match-set pairs src,dst -j DROP",
        )
    )
    assert set_names(tables) == {"blocked", "pairs"}


def nftables(
    rule: list[dict[str, object]],
    hook: str = "prerouting",
    priority: int = -300,
    family: str = "inet",
    **sets: list[object],
) -> tuple[PacketRule, ...]:
    """Return the rules of a table with one chain."""
    base = {"family": family, "table": "guard", "name": "early", "hook": hook, "prio": priority}
    own = {"family": family, "table": "guard"}
    listed = [
        {"table": {"family": family, "name": "guard"}},
        *({"set": {**own, "name": name, "elem": elements}} for name, elements in sets.items()),
        {"chain": base},
        {"rule": {**own, "chain": "early", "handle": 7, "expr": rule}},
    ]
    text = "table inet guard {\n\tchain early { # handle 1\n\t\tthe rule # handle 7\n\t}\n}\n"
    return tuple(read_nftables(read_listing(json.dumps({"nftables": listed})), text))


def match(left: object, right: object, op: str = "==") -> dict[str, object]:
    return {"match": {"op": op, "left": left, "right": right}}


def payload(protocol: str, field: str) -> dict[str, object]:
    return {"payload": {"protocol": protocol, "field": field}}


DPORT, DADDR = payload("tcp", "dport"), payload("ip", "daddr")
ORIGINAL_PORT = {"ct": {"key": "proto-dst", "dir": "original"}}
DROP: dict[str, object] = {"drop": None}

NFT_LOST = {
    "a NodePort": (nftables([match(DPORT, 30080), DROP]), NAMED),
    "at netdev ingress": (
        nftables([match(DPORT, 30080), DROP], "ingress", -500, "netdev"),
        NAMED,
    ),
    "a range of ports": (nftables([match(DPORT, {"range": [30000, 32767]}), DROP]), NAMED),
    "an anonymous set": (nftables([match(DPORT, {"set": [22, 30080]}), DROP]), NAMED),
    "a named set": (
        nftables([match(DADDR, "@vips"), DROP], vips=["80.11.12.20", "80.11.12.21"]),
        VIP,
    ),
    "a named set with comments": (
        nftables([match(DADDR, "@vips"), DROP], vips=[{"elem": {"val": "80.11.12.20"}}]),
        VIP,
    ),
    "a prefix": (
        nftables([match(DADDR, {"prefix": {"addr": "80.11.0.0", "len": 16}}), DROP]),
        VIP,
    ),
    "a verdict map": (
        nftables([{"vmap": {"key": DPORT, "data": {"set": [[30080, {"drop": None}]]}}}]),
        NAMED,
    ),
    "a concatenation": (
        nftables(
            [match({"concat": [DADDR, DPORT]}, "@pairs"), DROP],
            pairs=[{"concat": ["192.168.50.11", 30080]}],
        ),
        NAMED,
    ),
    "the node's own packets": (nftables([match(DPORT, 30080), DROP], "output", -150), NAMED),
    "conntrack's original port, in any chain": (
        nftables([match(ORIGINAL_PORT, 30080), DROP], "forward", 0),
        NAMED,
    ),
    "conntrack's original address": (
        nftables(
            [match({"ct": {"key": "ip daddr", "dir": "original"}}, "80.11.12.20"), DROP],
            "forward",
            0,
        ),
        VIP,
    ),
}  # fmt: skip

NFT_KEPT = {
    "a rule behind DNAT": nftables([match(DPORT, 30080), DROP], priority=-90),
    "one that forwards": nftables([match(DPORT, 30080), DROP], "forward", 0),
    "a rule for sources": nftables([match(payload("ip", "saddr"), "203.0.113.1"), DROP]),
    "another port": nftables([match(DPORT, 22), DROP]),
    "UDP": nftables([match(payload("udp", "dport"), 30080), DROP]),
    "an excepted destination": nftables([match(DADDR, "10.9.0.1", "!="), DROP]),
    "no tracking alone": nftables([match(DPORT, 30080), {"notrack": None}]),
}


@pytest.mark.parametrize(("rules", "frontends"), NFT_LOST.values(), ids=NFT_LOST)
def test_a_rule_of_nftables_that_names_a_frontend_is_lost(
    rules: tuple[PacketRule, ...], frontends: set[str]
) -> None:
    assert lost(rules) == frontends


@pytest.mark.parametrize("rules", NFT_KEPT.values(), ids=NFT_KEPT)
def test_a_rule_of_nftables_that_goes_on_to_apply_is_none(rules: tuple[PacketRule, ...]) -> None:
    assert lost(rules) == set()


def test_the_finding_names_table_services_and_rule() -> None:
    """Two rules of one table are one finding; the log has one line for all."""
    facts = FirewallFacts(
        (
            *iptables(
                "PREROUTING -p tcp -m tcp --dport 30080 -j DROP",
                "PREROUTING -d 80.11.12.20/32 -j DROP",
            ),
            *nftables([match(DPORT, 30080), DROP]),
        ),
        PLACES,
    )
    first, second = check_firewall(facts)
    assert first.text == (
        "iptables, table raw, PREROUTING: 2 rules no longer see packets to"
        " prod/web:http (nodeport:30080/TCP), prod/shop:https (80.11.12.20:443/TCP), because bpfsvc"
        " translates them before; the first is: -A PREROUTING -p tcp -m tcp --dport 30080 -j DROP"
    )
    assert "docs/firewalls.md" in first.hint
    assert second.text.startswith("nftables: inet guard, early: 1 rule no longer see")
    assert second.text.endswith("the first is: the rule")
    assert firewall_warning(facts).startswith(
        "rules of iptables, table raw, PREROUTING, nftables: inet guard, early no longer see"
        " packets to prod/web:http (nodeport:30080/TCP), prod/shop:https"
    )


def test_before_any_proxy_has_written_services_the_rules_are_noted() -> None:
    """Which Services they concern is not known then."""
    rules = iptables("PREROUTING -p tcp --dport 30080 -j DROP")
    (finding,) = check_firewall(FirewallFacts(rules))
    assert finding.level is Level.NOTE
    assert "no Service is known yet" in finding.text
