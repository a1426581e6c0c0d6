"""What real kube-proxy's rules do to each class of clients, read from both of its modes."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from bpfsvc.base.address import pack
from bpfsvc.migration.decisions import Treatment
from bpfsvc.migration.netfilter.iptables import read_tables, without_comments
from bpfsvc.migration.netfilter.nftables import read_listing
from bpfsvc.migration.verify.comparison import differences
from bpfsvc.migration.verify.iptables_rules import read_iptables
from bpfsvc.migration.verify.nftables_rules import read_nftables
from bpfsvc.migration.verify.rules import IncompleteRules, UnreadableRules
from bpfsvc.services.entries import CLIENTS
from tests.migration.values import network, treated
from tests.migration.verify.kube_proxys_rules import (
    FORWARD,
    IN_ALL_MODES,
    LAYOUTS,
    LOCAL,
    MASQUERADE,
    REJECT,
    REMOTE,
    Layout,
    decision,
    decisions,
    text,
)

LOCAL_V6 = ("[fd44:1::11]:8080", "[fd44:1::12]:8080")

DROP = Treatment("drop")

CASES = {
    **IN_ALL_MODES,
    "Local keeps clients, and restricts those outside": (
        "80.11.12.22:80/TCP",
        (FORWARD, MASQUERADE, treated("forward", *LOCAL)),
    ),
    "Local over IPv6": (
        "[2001:db8:80::22]:80/TCP",
        (
            treated("forward", *LOCAL_V6, "[fd44:2::11]:8080", "[fd44:2::12]:8080"),
            treated("masquerade", *LOCAL_V6, "[fd44:2::11]:8080", "[fd44:2::12]:8080"),
            treated("forward", *LOCAL_V6),
        ),
    ),
    "Local without endpoints here drops clients outside": (
        "nodeport:30016/TCP",
        (treated("forward", *REMOTE), treated("masquerade", *REMOTE), DROP),
    ),
    "its cluster IP has all": (
        "10.96.0.16:80/TCP",
        (treated("forward", *REMOTE), *[treated("masquerade", *REMOTE)] * 2),
    ),
    "an internal policy Local": (
        "10.96.0.17:80/TCP",
        (treated("forward", *LOCAL), *[treated("masquerade", *LOCAL)] * 2),
    ),
    "an internal policy Local without endpoints here": ("10.96.0.18:80/TCP", (DROP,) * 3),
    "no endpoints at all": ("10.96.0.20:80/TCP", (REJECT,) * 3),
    "no endpoints behind a NodePort": ("nodeport:30020/TCP", (REJECT,) * 3),
    "no endpoints behind a load balancer": ("80.11.12.24:80/TCP", (REJECT,) * 3),
    "affinity with Local": (
        "80.11.12.25:80/TCP",
        (FORWARD, MASQUERADE, treated("forward", *LOCAL)),
    ),
}


@pytest.mark.parametrize(("frontend", "expected"), CASES.values(), ids=CASES)
@pytest.mark.parametrize("layout", LAYOUTS)
def test_each_class_of_clients_is_treated_as_the_rules_say(
    layout: Layout, frontend: str, expected: tuple[Treatment, ...]
) -> None:
    assert decision(layout, frontend).clients == dict(zip(CLIENTS, expected, strict=True))


@pytest.mark.parametrize("layout", LAYOUTS)
def test_affinity_is_read_in_seconds(layout: Layout) -> None:
    assert decision(layout, "10.96.0.19:80/TCP").affinity == 600
    assert decision(layout, "nodeport:30023/TCP").affinity == 10800
    assert decision(layout, "10.96.0.10:80/TCP").affinity == 0


@pytest.mark.parametrize("layout", LAYOUTS)
def test_source_ranges_hold_at_the_load_balancers_address_alone(layout: Layout) -> None:
    """The node is within a range, so the load balancer's own address is one, too."""
    ranges = tuple(map(network, ("80.11.12.21/32", "192.168.50.0/24", "203.0.113.0/24")))
    assert decision(layout, "80.11.12.21:80/TCP").sources == ranges
    assert decision(layout, "[2001:db8:80::21]:80/TCP").sources == (network("2001:db8:80::/64"),)
    assert decision(layout, "nodeport:30014/TCP").sources == ()
    assert decision(layout, "10.96.0.14:80/TCP").sources == ()


@pytest.mark.parametrize("layout", LAYOUTS)
def test_the_name_of_the_service_is_that_of_the_rules(layout: Layout) -> None:
    assert decision(layout, "10.96.0.10:53/UDP").service == "prod/plain:dns"
    assert decision(layout, "10.96.0.24:443/TCP").service == "prod/unnamed"
    assert decision(layout, "nodeport:30020/TCP").service == "prod/empty:web"


@pytest.mark.parametrize("family", [4, 6])
def test_both_modes_of_kube_proxy_do_the_same(family: int) -> None:
    """This compares two readers that share no code but the walk."""
    iptables, nftables, of_1_38 = (decisions(layout, family) for layout in LAYOUTS)
    assert len(iptables.frontends) == 32
    assert differences(iptables, nftables) == []
    assert differences(iptables, of_1_38) == []
    assert nftables.nodeports == frozenset({pack("192.168.50.11" if family == 4 else "fd50::11")})


def test_rules_of_other_programs_are_no_rules_of_kube_proxy() -> None:
    saved = "*nat\n:PREROUTING ACCEPT [0:0]\n:CNI-HOSTPORT - [0:0]\nCOMMIT\n"
    assert read_iptables("iptables-nft", 4, read_tables(saved)) is None
    tables = '{"nftables": [{"table": {"family": "ip", "name": "guard"}}]}'
    assert read_nftables(read_listing(tables), 4) is None


@pytest.mark.parametrize(
    ("layout", "old", "new", "word"),
    [
        ("iptables", " --dst-type LOCAL", " --dst-type LOCAL --limit-iface-in", "--limit-iface-in"),
        ("nftables", '{"fib":{"result":"type"', '{"osf":{"result":"type"', "osf"),
        (
            "nftables",
            '"right":"@nodeport-ips"',
            '"right":{"range":["10.0.0.1","10.0.0.9"]}',
            "range",
        ),
    ],
)
def test_what_is_not_known_is_an_error_and_never_a_guess(
    layout: Layout, old: str, new: str, word: str
) -> None:
    printed = text(layout)
    assert old in printed
    with pytest.raises(UnreadableRules, match=word):
        decisions(layout, 4, printed.replace(old, new))


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ('"addr":{"map"', '"addr":{"hash"'),
        ('{"concat":["10.244.1.11",8443]}', '"@endpoints"'),
        ('"field":"daddr"', '"feld":"daddr"'),
    ],
)
def test_nor_is_it_a_traceback(old: str, new: str) -> None:
    """A form of nft's output that no release of nft had so far."""
    printed = text("nftables")
    assert old in printed
    with pytest.raises(UnreadableRules, match="not understood"):
        decisions("nftables", 4, printed.replace(old, new))


def test_rules_of_a_large_cluster_have_no_comments_at_endpoints() -> None:
    """iptables mode leaves them out from 1,000 endpoints on."""
    lines = text("iptables").splitlines()
    printed = "\n".join(
        without_comments(line) if line.startswith(("-A KUBE-SVC-", "-A KUBE-SEP-")) else line
        for line in lines
    )
    assert decisions("iptables", 4, printed) == decisions("iptables")


LONG = f"{'n' * 63}/{'s' * 62}:web"


def test_a_name_that_kube_proxy_cut_off_is_shown_as_cut_off() -> None:
    """Since 1.37, comments end at 128 bytes. A Service without endpoints has no chain."""
    printed = text("nftables").replace("prod/empty:web", LONG[:128])
    assert decision("nftables", "10.96.0.20:80/TCP", printed).service == f"{LONG[:128]}..."


def test_a_chain_names_its_service_better_than_a_comment() -> None:
    """Whichever of the two is listed first."""
    items = json.loads(text("nftables").replace("prod/etp-none-here:web", LONG[:128]))["nftables"]
    items.sort(key=lambda item: item.get("chain", {}).get("name") == "nodeport-endpoints-check")
    printed = json.dumps({"nftables": items})
    assert decision("nftables", "nodeport:30016/TCP", printed).service == "prod/etp-none-here:web"


HALVES = {
    "no chain of Services yet": lambda item: "table" in item,
    "a chain that is led to is not there": lambda item: (
        item.get("chain", {}).get("name") != "service-MM7JXWXJ-prod/one/tcp/web"
    ),
    "a set that is asked is not there": lambda item: (
        item.get("set", {}).get("name") != "cluster-ips"
    ),
    "a map that is asked is not there": lambda item: (
        item.get("map", {}).get("name") != "service-ips"
    ),
}


@pytest.mark.parametrize("there", HALVES.values(), ids=HALVES)
def test_rules_that_are_written_by_half_are_incomplete(there: Callable[[Any], bool]) -> None:
    items = filter(there, json.loads(text("nftables-1.38"))["nftables"])
    with pytest.raises(IncompleteRules, match="not found"):
        decisions("nftables-1.38", 4, json.dumps({"nftables": [*items]}))


def test_kube_proxys_older_chains_of_nftables_are_read() -> None:
    """A chain for each endpoint with a rule for hairpin, and marks by a chain of their own."""
    vmap = {
        "key": {"numgen": {"mode": "random", "mod": 1, "offset": 0}},
        "data": {"set": [[0, {"goto": {"target": "endpoint-A"}}]]},
    }
    saddr = {"payload": {"protocol": "ip", "field": "saddr"}}
    daddr = {"payload": {"protocol": "ip", "field": "daddr"}}
    key = {"concat": [daddr, {"meta": {"key": "l4proto"}}, {"payload": {"field": "dport"}}]}
    mark: dict[str, object] = {"jump": {"target": "mark-for-masquerade"}}
    pods = {"prefix": {"addr": "10.244.0.0", "len": 16}}
    name = "service-ABCDEFGH-prod/web/tcp/http"
    rules: list[tuple[str, list[dict[str, object]]]] = [
        ("services", [{"vmap": {"key": key, "data": "@service-ips"}}]),
        (
            name,
            [
                {"match": {"op": "==", "left": daddr, "right": "10.96.0.10"}},
                {"match": {"op": "!=", "left": saddr, "right": pods}},
                mark,
            ],
        ),
        (name, [{"vmap": vmap}]),
        ("endpoint-A", [{"match": {"op": "==", "left": saddr, "right": "10.244.1.11"}}, mark]),
        ("endpoint-A", [{"dnat": {"addr": "10.244.1.11", "port": 8080}}]),
        ("mark-for-masquerade", [{"mangle": {"key": {"meta": {"key": "mark"}}, "value": 1}}]),
    ]
    element = [{"concat": ["10.96.0.10", "tcp", 80]}, {"goto": {"target": name}}]
    listed = [
        {"table": {"family": "ip", "name": "kube-proxy"}},
        {"map": {"name": "service-ips", "elem": [element]}},
        *({"chain": {"name": chain}} for chain in dict.fromkeys(chain for chain, _ in rules)),
        *({"rule": {"chain": chain, "expr": expr}} for chain, expr in rules),
    ]
    decided = decision("nftables", "10.96.0.10:80/TCP", json.dumps({"nftables": listed}))
    only = "10.244.1.11:8080"
    assert decided.service == "prod/web:http"
    assert decided.clients == {
        "pod": treated("forward", only),
        "node": treated("masquerade", only),
        "other": treated("masquerade", only),
    }
