"""The recorded rule sets, expanded: what is written at first, and at a change."""

from __future__ import annotations

from dataclasses import replace
from ipaddress import IPv4Network

import pytest

from bpfsvc.devtools.bench.baselines import (
    MODES,
    BaselineService,
    Mode,
    NodeFacts,
    Step,
    all_rules,
)
from bpfsvc.devtools.bench.kube_proxy import place_of_rule, synced

NODE = NodeFacts("192.168.50.11", IPv4Network("10.244.1.0/24"), IPv4Network("10.244.0.0/16"))
WEB = BaselineService(
    "default/web:http",
    "10.96.0.1",
    80,
    "tcp",
    30080,
    (("10.244.2.3", 8080), ("10.244.1.3", 8080), ("10.244.2.2", 8080)),
)
DNS = BaselineService("kube-system/dns", "10.96.0.10", 53, "udp", 0, (("10.244.1.4", 53),))


def lines(steps: list[Step], program: str) -> list[str]:
    """Return what the only run of a program reads."""
    (text,) = (step.text.splitlines() for step in steps if step.command[0] == program)
    return text


def of(text: list[str], start: str) -> list[str]:
    """Return the lines that begin so, without that."""
    return [line.removeprefix(start) for line in text if line.startswith(start)]


@pytest.mark.parametrize("mode", MODES)
def test_no_line_of_a_template_is_left_in_the_rules(mode: Mode) -> None:
    """Every placeholder has a value, and no line is blank."""
    for step in all_rules(mode, [DNS, WEB], NODE):
        written = step.text.splitlines()
        assert all(line.strip() and "{{" not in line and "{%" not in line for line in written)


@pytest.mark.parametrize(("mode", "flavour"), [("iptables", "legacy"), ("iptables-nft", "nft")])
def test_iptables_has_one_rule_for_each_frontend_in_the_order_given(
    mode: Mode, flavour: str
) -> None:
    """NodePorts come last, by a chain of their own."""
    text = lines(all_rules(mode, [DNS, WEB], NODE), f"iptables-{flavour}-restore")
    rules = of(text, "-A KUBE-SERVICES ")
    assert [rule.split()[-1] for rule in rules] == [
        f"KUBE-SVC-{DNS.id}",
        f"KUBE-SVC-{WEB.id}",
        "KUBE-NODEPORTS",
    ]
    assert rules[0].startswith(
        '-m comment --comment "kube-system/dns cluster IP" -m udp -p udp -d 10.96.0.10 --dport 53 '
    )
    (node_port,) = of(text, "-A KUBE-NODEPORTS ")
    assert "--dport 30080" in node_port
    outside = f"KUBE-EXT-{WEB.id}"
    assert node_port.endswith(f"-j {outside}")
    marked, spread = of(text, f"-A {outside} ")
    assert marked.endswith("-j KUBE-MARK-MASQ")
    assert spread == f"-j KUBE-SVC-{WEB.id}"
    assert not [line for line in text if f"KUBE-EXT-{DNS.id}" in line]


def test_iptables_gives_every_endpoint_the_same_odds() -> None:
    """One in as many as are left, in the order of their texts, the last without asking."""
    text = lines(all_rules("iptables", [WEB], NODE), "iptables-legacy-restore")
    off_cluster, *choices = of(text, f"-A KUBE-SVC-{WEB.id} ")
    assert off_cluster.endswith("! -s 10.244.0.0/16 -j KUBE-MARK-MASQ")
    odds = [choice.partition("--probability ")[2].split(" ")[0] for choice in choices]
    assert odds == ["0.3333333333", "0.5000000000", ""]
    assert [str(endpoint) for endpoint in WEB.endpoints] == [
        *("10.244.1.3:8080", "10.244.2.2:8080", "10.244.2.3:8080"),
    ]
    chains = [f"KUBE-SEP-{endpoint.id}" for endpoint in WEB.endpoints]
    assert [choice.split()[-1] for choice in choices] == chains
    for chain, endpoint in zip(chains, WEB.endpoints, strict=True):
        hairpin, translation = of(text, f"-A {chain} ")
        assert hairpin.endswith(f"-s {endpoint.address} -j KUBE-MARK-MASQ")
        assert translation.endswith(f"-j DNAT --to-destination {endpoint}")


def test_iptables_of_a_large_cluster_has_fewer_comments() -> None:
    """Chains of Services lose them; the rules of frontends do not."""
    many = [
        replace(WEB, name=f"default/s{number}", address=f"10.96.1.{number}", node_port=0)
        for number in range(200)
    ]
    few = lines(all_rules("iptables", many, NODE), "iptables-legacy-restore")
    more = [
        replace(service, backends=tuple((f"10.244.2.{number}", 80) for number in range(6)))
        for service in many
    ]
    large = lines(all_rules("iptables", more, NODE), "iptables-legacy-restore")
    assert all("--comment" in line for line in few if line.startswith("-A KUBE-SEP-"))
    assert not any("--comment" in line for line in large if line.startswith("-A KUBE-SEP-"))
    assert all("--comment" in line for line in large if line.startswith("-A KUBE-SERVICES "))
    assert len(of(large, "-A KUBE-SEP-")) == 200 * 6 * 2


def test_nftables_of_a_large_cluster_is_written_in_portions_of_1000() -> None:
    """The table with the first; every Service in one of them."""
    many = [replace(DNS, name=f"default/s{at}") for at in range(2001)]
    steps = all_rules("nftables", many, NODE)
    assert [len(of(step.text.splitlines(), "add table")) for step in steps] == [1, 0, 0]
    written = [
        len(of(step.text.splitlines(), "add chain ip kube-proxy service-")) for step in steps
    ]
    assert written == [1001, 1000, 1]  # with service-endpoints-check


def test_ipvs_has_a_virtual_service_for_each_frontend() -> None:
    """Round robin, translated, at the node's address for a NodePort; the device has cluster IPs."""
    steps = all_rules("ipvs", [DNS, WEB], NODE)
    virtual = lines(steps, "ipvsadm")
    assert of(virtual, "-A ") == [
        "-u 10.96.0.10:53 -s rr",
        "-t 10.96.0.1:80 -s rr",
        "-t 192.168.50.11:30080 -s rr",
    ]
    assert len(of(virtual, "-a -t ")) == 6
    assert "-a -u 10.96.0.10:53 -r 10.244.1.4:53 -m -w 1" in virtual
    assert lines(steps, "ip") == [
        "link add kube-ipvs0 type dummy",
        "address add 10.96.0.10/32 dev kube-ipvs0",
        "address add 10.96.0.1/32 dev kube-ipvs0",
    ]
    members = of(lines(steps, "ipset"), "add ")
    assert of(members, "KUBE-LOOP-BACK ") == [
        "10.244.1.4,udp:53,10.244.1.4",
        "10.244.1.3,tcp:8080,10.244.1.3",
    ]
    assert of(members, "KUBE-NODE-PORT-TCP ") == ["30080"]
    assert of(members, "KUBE-CLUSTER-IP ") == ["10.96.0.10,udp:53", "10.96.0.1,tcp:80"]


def test_ipvs_has_as_many_rules_for_many_services_as_for_one() -> None:
    """They know Services by sets; all of the sets exist."""
    two_services = [replace(WEB, name="default/other", address="10.96.0.2"), WEB]
    single, double = (
        lines(all_rules("ipvs", services, NODE), "iptables-legacy-restore")
        for services in ([WEB], two_services)
    )
    assert single == double
    made = lines(all_rules("ipvs", [WEB], NODE), "ipset")
    created = {line.split()[0] for line in of(made, "create ")}
    assert {
        line.split("--match-set ")[1].split()[0] for line in single if "--match-set" in line
    } <= (created)


_METRIC = "kubeproxy_sync_proxy_rules_last_timestamp_seconds"


@pytest.mark.parametrize(
    ("metrics", "expected"),
    [
        ("", False),
        (f"# TYPE {_METRIC} gauge\n", False),
        (f'{_METRIC}{{ip_family="IPv6"}} 1.7e+09\n', False),
        (f'{_METRIC}{{ip_family="IPv6"}} 1e9\n{_METRIC}{{ip_family="IPv4"}} 1e9\n', True),
        (f"{_METRIC} 0\n", False),
        (f"{_METRIC} 1.7e+09\n", True),
    ],
    ids=["nothing", "no sample", "IPv6 alone", "both", "older, not yet", "older"],
)
def test_the_first_sync_is_seen_in_the_metrics(metrics: str, expected: bool) -> None:
    """With the label of a family, or without as older ones have it."""
    assert synced(metrics) is expected


def test_the_place_of_a_services_rule_is_counted_among_those_of_its_chain() -> None:
    rules = "-N KUBE-SERVICES\n" + "".join(
        f"-A KUBE-SERVICES -d {address}/32 -p {protocol} -m comment -j X\n"
        for address, protocol in (
            *(("10.96.0.100", "tcp"), ("10.96.0.10", "udp"), ("10.96.0.10", "tcp")),
            ("10.96.0.1", "tcp"),
        )
    )
    assert place_of_rule(rules, "10.96.0.10") == (3, 4)
    assert place_of_rule(rules, "10.96.0.7") == (0, 4)
