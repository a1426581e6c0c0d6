"""What is written for rivals: names, counts, order and odds as kube-proxy has them."""

from __future__ import annotations

from dataclasses import replace
from ipaddress import IPv4Network

import pytest

from bpfsvc.bench.rivals import Balanced, iptables, ipvs, nftables
from bpfsvc.bench.rivals.balanced import Backend, Site, Step
from bpfsvc.bench.rivals.kubeproxy import synced
from bpfsvc.errors import UsageError

SITE = Site("192.168.50.11", IPv4Network("10.244.1.0/24"), IPv4Network("10.244.0.0/16"))
COUNTED = SITE._replace(counted=True)
WEB = Balanced(
    "default/web:http",
    "10.96.0.1",
    80,
    "tcp",
    30080,
    (("10.244.2.3", 8080), ("10.244.1.3", 8080), ("10.244.2.2", 8080)),
)
DNS = Balanced("kube-system/dns", "10.96.0.10", 53, "udp", 0, (("10.244.1.4", 53),))
MOVED = replace(WEB, backends=(("10.244.1.3", 8080), ("10.244.2.9", 8080)))
KNOWN = Balanced("ns1/svc1:p80", "172.30.0.41", 80, "tcp", 0, (("10.180.0.1", 80),))
"""One whose names in kube-proxy are published."""


def lines(steps: list[Step], program: str) -> list[str]:
    """Give what the only run of a program reads."""
    (found,) = (step.text.splitlines() for step in steps if step.command[0] == program)
    return found


def of(text: list[str], start: str) -> list[str]:
    """Give the lines that begin so, without that."""
    return [line.removeprefix(start) for line in text if line.startswith(start)]


def test_names_are_kube_proxys() -> None:
    """The hashes of the same Service and endpoint."""
    (backend,) = KNOWN.endpoints
    assert iptables.service_chain(KNOWN) == "KUBE-SVC-XPGD46QRK7WJZT7O"
    assert iptables.endpoint_chain(KNOWN, backend) == "KUBE-SEP-SXIVWICOYRO3J4NJ"
    assert nftables.service_chain(KNOWN) == "service-ULMVA6XW-ns1/svc1/tcp/p80"


def test_something_is_balanced_over_something() -> None:
    """A Service without endpoints is another matter, and none of the benchmark's."""
    with pytest.raises(UsageError, match="no backends"):
        Balanced("default/none", "10.96.0.9", 80)


@pytest.mark.parametrize("flavour", ["legacy", "nft"])
def test_iptables_has_one_rule_for_each_frontend_in_the_order_given(flavour: str) -> None:
    """NodePorts come last, by a chain of their own."""
    text = lines(iptables.first(flavour, [DNS, WEB], SITE), f"iptables-{flavour}-restore")
    rules = of(text, "-A KUBE-SERVICES ")
    assert [rule.split()[-1] for rule in rules] == [
        iptables.service_chain(DNS),
        iptables.service_chain(WEB),
        "KUBE-NODEPORTS",
    ]
    assert rules[0].startswith(
        '-m comment --comment "kube-system/dns cluster IP" -m udp -p udp -d 10.96.0.10 --dport 53 '
    )
    (node_port,) = of(text, "-A KUBE-NODEPORTS ")
    assert "--dport 30080" in node_port
    outside = iptables.service_chain(WEB, "EXT")
    assert node_port.endswith(f"-j {outside}")
    marked, spread = of(text, f"-A {outside} ")
    assert marked.endswith("-j KUBE-MARK-MASQ")
    assert spread == f"-j {iptables.service_chain(WEB)}"


def test_iptables_counts_what_asks_for_node_ports_at_localhost() -> None:
    """By a rule before each NodePort's own, and those dropped as invalid, where there is nfacct."""
    text = lines(iptables.first("legacy", [WEB], COUNTED), "iptables-legacy-restore")
    local, other = of(text, "-A KUBE-NODEPORTS ")
    assert local == other.replace(
        "--dport 30080 ",
        "-d 127.0.0.0/8 --dport 30080 -m nfacct --nfacct-name localhost_nps_accepted_pkts ",
    )
    assert of(text, "-A KUBE-FORWARD ")[0] == (
        "-m conntrack --ctstate INVALID -m nfacct --nfacct-name ct_state_invalid_dropped_pkts "
        "-j DROP"
    )
    text = lines(iptables.first("legacy", [WEB], SITE), "iptables-legacy-restore")
    assert of(text, "-A KUBE-NODEPORTS ") == [other]
    assert of(text, "-A KUBE-FORWARD ")[0] == "-m conntrack --ctstate INVALID -j DROP"


def test_iptables_gives_every_endpoint_the_same_odds() -> None:
    """One in as many as are left, in the order of their texts, the last without asking."""
    text = lines(iptables.first("legacy", [WEB], SITE), "iptables-legacy-restore")
    off_cluster, *choices = of(text, f"-A {iptables.service_chain(WEB)} ")
    assert off_cluster.endswith("! -s 10.244.0.0/16 -j KUBE-MARK-MASQ")
    odds = [choice.partition("--probability ")[2].split(" ")[0] for choice in choices]
    assert odds == ["0.3333333333", "0.5000000000", ""]
    ordered = [Backend(f"10.244.{number}", 8080) for number in ("1.3", "2.2", "2.3")]
    chains = [iptables.endpoint_chain(WEB, each) for each in ordered]
    assert [choice.split()[-1] for choice in choices] == chains
    for chain, backend in zip(chains, ordered, strict=True):
        hairpin, translation = of(text, f"-A {chain} ")
        assert hairpin.endswith(f"-s {backend.address} -j KUBE-MARK-MASQ")
        assert translation.endswith(f"-j DNAT --to-destination {backend}")


def test_iptables_of_a_large_cluster_has_fewer_comments() -> None:
    """Chains of Services lose them; the rules of frontends do not."""
    many = [
        replace(WEB, name=f"default/s{number}", address=f"10.96.1.{number}", node_port=0)
        for number in range(200)
    ]
    few = lines(iptables.first("legacy", many, SITE), "iptables-legacy-restore")
    more = [
        replace(each, backends=tuple((f"10.244.2.{number}", 80) for number in range(6)))
        for each in many
    ]
    large = lines(iptables.first("legacy", more, SITE), "iptables-legacy-restore")
    assert all("--comment" in line for line in few if line.startswith("-A KUBE-SEP-"))
    assert not any("--comment" in line for line in large if line.startswith("-A KUBE-SEP-"))
    assert all("--comment" in line for line in large if line.startswith("-A KUBE-SERVICES "))
    assert len(of(large, "-A KUBE-SEP-")) == 200 * 6 * 2


def test_iptables_at_a_change_writes_all_frontends_and_chains_of_one_service() -> None:
    """The chain of the endpoint that has gone goes too; rules that jump are not written again."""
    steps = iptables.change("legacy", [DNS, MOVED], WEB, MOVED, SITE)
    text = lines(steps, "iptables-legacy-restore")
    assert len(of(text, "-A KUBE-SERVICES ")) == 3
    assert not any(iptables.service_chain(DNS) in line for line in of(text, ":"))
    assert not of(text, "-A PREROUTING")
    gone = {iptables.endpoint_chain(WEB, each) for each in WEB.endpoints[1:]}
    assert set(of(text, "-X ")) == gone
    assert all(f":{chain} - [0:0]" in text for chain in gone)
    assert not any(f"-j {chain}" in line for chain in gone for line in text)


def test_nftables_has_an_element_for_each_frontend_and_chains_for_all() -> None:
    """In one transaction; one rule of a Service's chain translates to any of its endpoints."""
    text = lines(nftables.first([DNS, WEB], SITE), "nft")
    assert of(text, "add element ip kube-proxy service-ips ") == [
        f"{{ 10.96.0.10 . udp . 53 : goto {nftables.service_chain(DNS)} }}",
        f"{{ 10.96.0.1 . tcp . 80 : goto {nftables.service_chain(WEB)} }}",
    ]
    outside = nftables.service_chain(WEB, "external")
    assert of(text, "add element ip kube-proxy service-nodeports ") == [
        f"{{ tcp . 30080 : goto {outside} }}"
    ]
    spread = nftables.service_chain(WEB)
    assert of(text, f"add rule ip kube-proxy {spread} ") == [
        "meta l4proto tcp dnat ip addr . port to numgen random mod 3 map "
        "{ 0 : 10.244.1.3 . 8080 , 1 : 10.244.2.2 . 8080 , 2 : 10.244.2.3 . 8080 }"
    ]
    assert of(text, f"add rule ip kube-proxy {outside} ") == [
        "mark set mark or 0x4000",
        f"goto {spread}",
    ]


def test_nftables_masquerades_what_is_marked_and_what_comes_back_to_itself() -> None:
    """Marked before anything is translated; an endpoint elsewhere is not its own client here."""
    text = lines(nftables.first([DNS, WEB], SITE), "nft")
    assert of(text, "add rule ip kube-proxy services ")[0] == (
        "ip daddr @cluster-ips ip saddr != 10.244.0.0/16 mark set mark or 0x4000"
    )
    assert of(text, "add rule ip kube-proxy masquerading ") == [
        "mark and 0x4000 != 0 mark set mark xor 0x4000 masquerade fully-random",
        "ct status dnat ip saddr . ip daddr . meta l4proto . th dport @hairpin-connections "
        "masquerade fully-random",
    ]
    assert of(text, "add element ip kube-proxy hairpin-connections ") == [
        "{ 10.244.1.4 . 10.244.1.4 . udp . 53 }",
        "{ 10.244.1.3 . 10.244.1.3 . tcp . 8080 }",
    ]


def test_nftables_refuses_what_is_left_of_the_range_of_services() -> None:
    """Ports that a cluster IP has not, and then addresses that nobody has."""
    text = lines(nftables.first([WEB], SITE), "nft")
    assert of(text, "add rule ip kube-proxy cluster-ips-check ") == [
        "ip daddr @cluster-ips reject",
        "ip daddr { 10.96.0.0/12 } drop",
    ]


def test_nftables_of_a_large_cluster_comes_in_portions() -> None:
    """The table with the first; every Service in one of them."""
    many = [replace(DNS, name=f"default/s{at}") for at in range(2 * nftables.PORTION + 1)]
    steps = nftables.first(many, SITE)
    assert [len(of(step.text.splitlines(), "add table")) for step in steps] == [1, 0, 0]
    written = [
        len(of(step.text.splitlines(), "add chain ip kube-proxy service-")) for step in steps
    ]
    assert written == [nftables.PORTION + 1, nftables.PORTION, 1]  # with service-endpoints-check


def test_nftables_at_a_change_writes_one_service() -> None:
    """Its chains are emptied before; no other is touched."""
    text = lines(nftables.change(MOVED, SITE), "nft")
    spread, outside = (nftables.service_chain(WEB, kind) for kind in ("service", "external"))
    assert of(text, "flush chain ip kube-proxy ") == [spread, outside]
    assert "numgen random mod 2 map" in of(text, f"add rule ip kube-proxy {spread} ")[0]
    assert of(text, "add element ip kube-proxy ") == [
        "hairpin-connections { 10.244.1.3 . 10.244.1.3 . tcp . 8080 }"
    ]


def test_ipvs_has_a_virtual_service_for_each_frontend() -> None:
    """Round robin, translated, at the node's address for a NodePort; the device has cluster IPs."""
    steps = ipvs.first([DNS, WEB], SITE)
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
    """They know Services by sets."""
    one, two = (
        lines(ipvs.first(services, SITE), "iptables-legacy-restore")
        for services in ([WEB], [replace(WEB, name="default/other", address="10.96.0.2"), WEB])
    )
    assert one == two


def test_ipvs_has_rules_for_sets_with_members_alone() -> None:
    """A hairpin is an endpoint of this node, and a NodePort has a protocol."""
    elsewhere = replace(DNS, backends=(("10.244.2.4", 53),), node_port=30053)
    text = lines(ipvs.first([elsewhere], SITE), "iptables-legacy-restore")
    assert [line.split("--match-set ")[1] for line in of(text, "-A KUBE-NODE-PORT -p")] == [
        "KUBE-NODE-PORT-UDP dst -j KUBE-MARK-MASQ"
    ]
    assert not any("KUBE-LOOP-BACK" in line for line in text)
    text = lines(ipvs.first([DNS], SITE), "iptables-legacy-restore")
    assert "KUBE-LOOP-BACK dst,dst,src -j MASQUERADE" in of(text, "-A KUBE-POSTROUTING ")[0]


def test_ipvs_looks_packets_for_this_node_up_in_five_sets() -> None:
    """Before it refuses ports of cluster IPs that no Service has; all of the sets exist."""
    steps = ipvs.first([WEB], SITE)
    text = lines(steps, "iptables-legacy-restore")
    assert of(text, "-A KUBE-IPVS-FILTER ") == [
        "-m set --match-set KUBE-LOAD-BALANCER dst,dst -j RETURN",
        "-m set --match-set KUBE-CLUSTER-IP dst,dst -j RETURN",
        "-m set --match-set KUBE-EXTERNAL-IP dst,dst -j RETURN",
        "-m set --match-set KUBE-EXTERNAL-IP-LOCAL dst,dst -j RETURN",
        "-m set --match-set KUBE-HEALTH-CHECK-NODE-PORT dst -j RETURN",
        "-m conntrack --ctstate NEW -m set --match-set KUBE-IPVS-IPS dst -j REJECT",
    ]
    filtering = text[text.index("*filter") : text.index("*nat")]
    assert of(filtering, "-A KUBE-NODE-PORT ") == [
        '-m comment --comment "Kubernetes health check node port" '
        "-m set --match-set KUBE-HEALTH-CHECK-NODE-PORT dst -j ACCEPT"
    ]
    made = {line.split()[0] for line in of(lines(steps, "ipset"), "create ")}
    named = {line.split("--match-set ")[1].split()[0] for line in text if "--match-set" in line}
    assert named <= made


def test_ipvs_lets_connections_of_a_gone_endpoint_end() -> None:
    """TCP's at weight 0, from where it may come back; UDP's go at once."""
    back = [Backend("10.244.2.9", 8080)]
    steps = ipvs.change([DNS, MOVED], WEB, MOVED, back, SITE)
    text = lines(steps, "ipvsadm")
    assert [line for line in text if "10.96.0.1:80" in line] == [
        "-e -t 10.96.0.1:80 -r 10.244.2.9:8080 -m -w 1",
        "-e -t 10.96.0.1:80 -r 10.244.2.2:8080 -m -w 0",
        "-e -t 10.96.0.1:80 -r 10.244.2.3:8080 -m -w 0",
    ]
    elsewhere = replace(DNS, backends=(("10.244.2.4", 53),))
    assert lines(ipvs.change([elsewhere], DNS, elsewhere, (), SITE), "ipvsadm") == [
        "-a -u 10.96.0.10:53 -r 10.244.2.4:53 -m -w 1",
        "-d -u 10.96.0.10:53 -r 10.244.1.4:53",
    ]


def test_ipvs_at_a_change_writes_the_rules_anew_after_the_real_servers() -> None:
    """All of them but the jumps to them; a set only if it has a new member."""
    steps = ipvs.change([DNS, MOVED], WEB, MOVED, (), SITE)
    assert [step.command[0] for step in steps] == ["ipvsadm", "iptables-legacy-restore"]
    first, again = (
        lines(each, "iptables-legacy-restore") for each in (ipvs.first([DNS, MOVED], SITE), steps)
    )
    jumps = {line for line in first if line.startswith(("-A INPUT", "-A OUTPUT", "-A FORWARD"))}
    jumps |= {line for line in first if line.startswith(("-A PREROUTING", "-A POSTROUTING"))}
    assert again == [line for line in first[3:] if line not in jumps]
    here = replace(WEB, backends=(("10.244.1.9", 8080),))
    assert lines(ipvs.change([here], WEB, here, (), SITE), "ipset") == [
        "add KUBE-LOOP-BACK 10.244.1.9,tcp:8080,10.244.1.9"
    ]


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
