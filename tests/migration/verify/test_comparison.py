"""Which differences are reported, and how."""

from __future__ import annotations

import pytest

from bpfsvc.base.address import pack
from bpfsvc.base.protocols import PROTOCOLS
from bpfsvc.migration.decisions import Decision, Decisions, Treatment
from bpfsvc.migration.verify.comparison import MISSING, Difference, differences, persistent
from bpfsvc.migration.verify.maps import read_maps
from bpfsvc.services.entries import Frontend
from tests.inspect.inspected import frontend, policy, web
from tests.inspect.pinned import Maps
from tests.migration.values import network, place, treated
from tests.migration.verify.kube_proxys_rules import LAYOUTS, Layout, decisions, text

UNNAMED = Frontend(pack("10.96.0.24"), 443, PROTOCOLS["TCP"])
WEB = Frontend(pack("10.96.0.9"), 80, PROTOCOLS["TCP"])


def addresses(*texts: str) -> frozenset[bytes]:
    return frozenset(map(pack, texts))


CHANGES = {
    "an endpoint that only one has": (
        ("iptables", "10.244.1.11:8443", "10.244.1.19:8443"),
        ("nftables", '["10.244.1.11",8443]', '["10.244.1.19",8443]'),
        [("prod/unnamed", "10.96.0.24:443/TCP", ("pod", "node", "other"), "backends")],
    ),
    "another time of affinity": (
        ("iptables", "--seconds 600", "--seconds 60"),
        ("nftables", '"timeout":600', '"timeout":60'),
        [
            ("prod/affine:web", "10.96.0.19:80/TCP", (), "affinity"),
            ("prod/affine:web", "nodeport:30019/TCP", (), "affinity"),
        ],
    ),
    "other source ranges": (
        ("iptables", "-s 203.0.113.0/24", "-s 203.0.114.0/24"),
        ("nftables", '"203.0.113.0","len":24', '"203.0.114.0","len":24'),
        [("prod/ranges:web", "80.11.12.21:80/TCP", (), "sources")],
    ),
}  # fmt: skip


@pytest.mark.parametrize(("iptables", "nftables", "expected"), CHANGES.values(), ids=CHANGES)
def test_a_difference_is_reported_with_its_service(
    iptables: tuple[Layout, str, str],
    nftables: tuple[Layout, str, str],
    expected: list[tuple[object, ...]],
) -> None:
    for layout, old, new in (iptables, nftables):
        assert old in text(layout)
        changed = decisions(layout, 4, text(layout).replace(old, new))
        assert [
            difference[:4] for difference in differences(changed, decisions(layout))
        ] == expected


@pytest.mark.parametrize("layout", LAYOUTS)
def test_only_what_one_of_the_two_has_is_shown(layout: Layout) -> None:
    theirs = decisions(layout)
    web = theirs.frontends[UNNAMED]
    ours = {**theirs.frontends, UNNAMED: _with(web, "10.244.1.11:8443", "10.9.9.9:1")}
    assert differences(theirs, Decisions(ours)) == [
        Difference(
            *("prod/unnamed", "10.96.0.24:443/TCP", ("pod", "node", "other"), "backends"),
            *((), ("10.9.9.9:1",)),
        )
    ]


def _with(decision: Decision, *backends: str) -> Decision:
    clients = {
        client: treated(treatment.action, *backends)
        for client, treatment in decision.clients.items()
    }
    return decision._replace(clients=clients)


def test_a_frontend_that_only_one_has_is_one_difference() -> None:
    theirs = decisions("nftables")
    without = {
        frontend: decision for frontend, decision in theirs.frontends.items() if frontend != UNNAMED
    }
    named = ("prod/unnamed", "10.96.0.24:443/TCP", (), "frontend")
    both = ("forward", "masquerade")
    assert differences(theirs, Decisions(without)) == [Difference(*named, both, ())]
    assert differences(Decisions(without), theirs) == [Difference(*named, (), both)]


def test_classes_of_clients_are_named_where_they_differ() -> None:
    drops = Decision("prod/web:http", dict.fromkeys(("pod", "node", "other"), Treatment("drop")))
    rejects = drops._replace(clients={**drops.clients, "node": Treatment("reject")})
    listed = differences(Decisions({WEB: drops}), Decisions({WEB: rejects}))
    assert listed == [
        Difference("prod/web:http", "10.96.0.9:80/TCP", ("node",), "action", ("drop",), ("reject",))
    ]


def test_addresses_of_nodeports_are_compared_where_both_know_them() -> None:
    theirs = Decisions({}, addresses("192.168.50.11"))
    ours = Decisions({}, addresses("192.168.50.11", "10.0.0.1", "fd50::11"))
    (listed,) = differences(theirs, ours)
    assert listed == Difference("", "nodeport:*", (), "addresses", (), ("10.0.0.1",))
    assert differences(theirs._replace(nodeports=None), ours) == []


def test_what_differs_once_is_a_change_under_way() -> None:
    first = Difference("prod/web:http", "10.96.0.9:80/TCP", (), "frontend", (), ("forward",))
    second = first._replace(frontend="10.96.0.10:80/TCP")
    assert persistent([[first, second], [second]]) == [second]
    assert persistent([[first], [second]]) == []


def test_the_maps_are_read_as_decisions() -> None:
    """Without the entry for all other ports of a cluster IP; a slot may lack its backend."""
    maps = Maps()
    web(maps)
    maps.put("frontends", frontend("10.96.0.9:0", 0), {"service": 1, "generation": 9})
    policies = policy("pod", 0, 2) | policy("node", 1, 2, masquerade=1) | policy("other")
    value = {"service": 1, "generation": 9, "affinity_seconds": 60, **policies}
    maps.put("frontends", frontend("10.96.0.9:80"), value)
    maps.put("frontends", frontend("80.11.12.20:80"), {**value, "restricted": 1})
    for bits, start in ((25, "203.0.113.128"), (24, "203.0.113.0")):
        key: dict[str, int | bytes] = {"prefix": 32 + 96 + bits, "service": 1}
        maps.put("source_ranges", key | {"network": pack(start)}, {"value": 1})
    for address, accepts in (("::1", 0), ("10.0.0.1", 1)):
        maps.put("node_addresses", {"address": pack(address)}, {"nodeports": accepts})
    read = read_maps(maps)
    assert read.nodeports == addresses("10.0.0.1")
    second = place("10.244.2.7:8080")
    decided = Decision(
        "default/web:http",
        {
            "pod": treated("forward", "10.244.1.5:8080", "10.244.2.7:8080"),
            "node": Treatment("masquerade", frozenset({second, MISSING})),
            "other": Treatment("drop"),
        },
        60,
    )
    ranges = (network("203.0.113.0/24"),)
    assert read.frontends == {
        WEB: decided,
        WEB._replace(address=pack("80.11.12.20")): decided._replace(sources=ranges),
    }
