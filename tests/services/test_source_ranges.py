"""``loadBalancerSourceRanges``, one sentence per special case: allowed clients and frontends."""

from __future__ import annotations

from dataclasses import replace

import pytest

from bpfsvc.base.address import pack, unpack
from bpfsvc.model import Service
from bpfsvc.services.entries import Frontend, PortEntries
from bpfsvc.services.rules.view import evaluate
from tests.services.objects import CONFIG, HTTP, NODE, endpoint_slice, frontend_text, service

VIP, OTHER_VIP, EXTERNAL = "1.2.3.4", "1.2.3.5", "80.0.0.1"
NODE_IP = "192.168.0.2"
HERE = replace(NODE, addresses=(pack(NODE_IP), pack("2001:db8::1")))


def balanced(*ranges: str, **spec: object) -> Service:
    """Return a load balancer with every type of frontend, restricted to ``ranges``."""
    return service(
        type="LoadBalancer",
        ports=[HTTP | {"nodePort": 30080}],
        externalIPs=[EXTERNAL],
        ingress=({"ip": VIP}, {"ip": OTHER_VIP}),
        loadBalancerSourceRanges=list(ranges),
        **spec,  # type: ignore[arg-type]
    )


def entries_of(
    thing: Service, *, for_all: bool = False, endpoints: str = "10.0.0.1 here"
) -> PortEntries:
    config = replace(CONFIG, source_ranges_for_all=for_all)
    slices = [endpoint_slice(endpoints)] if endpoints else []
    (entries,) = evaluate(thing, slices, HERE, config).entries.values()
    return entries


def restricted(entries: PortEntries) -> list[str]:
    return [
        frontend_text(one) for one, policies in entries.frontends.items() if policies.restricted
    ]


def ranges(entries: PortEntries) -> set[str]:
    return {f"{unpack(network)}/{bits - 96}" for network, bits in entries.ranges}


def test_ranges_restrict_the_addresses_of_the_load_balancer_and_nothing_else() -> None:
    entries = entries_of(balanced("203.0.113.0/25"))
    assert restricted(entries) == [f"{VIP} 80", f"{OTHER_VIP} 80"]
    assert ranges(entries) == {"203.0.113.0/25"}


def test_without_endpoints_clients_out_of_range_are_still_dropped_first() -> None:
    entries = entries_of(balanced("203.0.113.0/25"), endpoints="")
    assert restricted(entries) == [f"{VIP} 80", f"{OTHER_VIP} 80"]
    assert all(policies.other.reject for policies in entries.frontends.values())


@pytest.mark.parametrize(
    "given",
    [
        pytest.param([], id="no ranges"),
        pytest.param(["203.0.113.0/25", "0.0.0.0/0"], id="a range of all addresses"),
        pytest.param(["2001:db8::/32"], id="ranges of the other family only"),
        pytest.param(["rubbish", "1.2.3.0"], id="no valid range"),
        pytest.param(["::/0"], id="all of the other family"),
    ],
)
def test_all_clients_are_allowed(given: list[str]) -> None:
    entries = entries_of(balanced(*given))
    assert (restricted(entries), entries.ranges) == ([], ())


def test_a_range_of_all_addresses_of_the_other_family_changes_nothing() -> None:
    assert ranges(entries_of(balanced("203.0.113.0/25", "::/0"))) == {"203.0.113.0/25"}


@pytest.mark.parametrize("text", [" 203.0.113.0/25 ", "203.0.113.000/025", "203.0.113.77/25"])
def test_ranges_are_parsed_leniently(text: str) -> None:
    assert ranges(entries_of(balanced(text))) == {"203.0.113.0/25"}


def test_a_range_with_the_nodes_address_also_allows_the_load_balancers_own_addresses() -> None:
    assert ranges(entries_of(balanced("192.168.0.0/24"))) == {
        "192.168.0.0/24",
        f"{VIP}/32",
        f"{OTHER_VIP}/32",
    }


def test_other_addresses_of_the_node_do_not_have_that_effect() -> None:
    two = replace(HERE, addresses=(pack("10.9.9.9"), pack(NODE_IP)))
    (entries,) = evaluate(balanced("192.168.0.0/24"), [], two, CONFIG).entries.values()
    assert ranges(entries) == {"192.168.0.0/24"}


def test_a_node_without_addresses_counts_as_loopback() -> None:
    (entries,) = evaluate(balanced("127.0.0.0/8"), [], NODE, CONFIG).entries.values()
    assert ranges(entries) == {"127.0.0.0/8", f"{VIP}/32", f"{OTHER_VIP}/32"}


def test_an_address_that_is_both_external_ip_and_load_balancers_is_restricted() -> None:
    thing = service(
        type="LoadBalancer",
        externalIPs=[VIP],
        ingress=({"ip": VIP},),
        loadBalancerSourceRanges=["203.0.113.0/25"],
    )
    assert restricted(entries_of(thing)) == [f"{VIP} 80"]


def test_without_a_restricted_frontend_no_range_is_kept() -> None:
    thing = service(loadBalancerSourceRanges=["203.0.113.0/25"])
    assert entries_of(thing).ranges == ()


def test_as_an_extension_ranges_restrict_all_external_frontends() -> None:
    entries = entries_of(balanced("203.0.113.0/25"), for_all=True)
    assert restricted(entries) == [f"{EXTERNAL} 80", f"{VIP} 80", f"{OTHER_VIP} 80", "node4 30080"]


def test_each_family_has_its_own_ranges() -> None:
    thing = service(
        type="LoadBalancer",
        clusterIPs=["10.96.0.1", "fd00::1"],
        ipFamilies=["IPv4", "IPv6"],
        ingress=({"ip": VIP}, {"ip": "2001:db8::4"}),
        loadBalancerSourceRanges=["203.0.113.0/25", "2001:db8:1::/48"],
    )
    v4, v6 = evaluate(thing, [], HERE, CONFIG).entries.values()
    assert [(unpack(net), bits) for net, bits in v4.ranges] == [("203.0.113.0", 121)]
    assert [(unpack(net), bits) for net, bits in v6.ranges] == [("2001:db8:1::", 48)]


# -- other properties of frontends: session affinity, and undefined ports of a cluster IP --


def test_affinity_holds_at_all_frontends_of_a_service() -> None:
    config = {"clientIP": {"timeoutSeconds": 60}}
    entries = entries_of(balanced(sessionAffinity="ClientIP", sessionAffinityConfig=config))
    kept = {
        frontend_text(one): policies.affinity_seconds for one, policies in entries.frontends.items()
    }
    texts = ("10.96.0.1 80", f"{EXTERNAL} 80", f"{VIP} 80", f"{OTHER_VIP} 80", "node4 30080")
    assert kept == dict.fromkeys(texts, 60) | {"10.96.0.1 rest": 0}


def test_affinity_lasts_three_hours_by_default() -> None:
    entries = entries_of(service(sessionAffinity="ClientIP"))
    assert {one.affinity_seconds for one in entries.frontends.values()} == {10800, 0}


def test_undefined_ports_of_a_cluster_ip_refuse_all_clients() -> None:
    thing = service(ports=[HTTP, {"name": "dns", "port": 53, "protocol": "UDP"}])
    first, second = evaluate(
        thing, [endpoint_slice("10.0.0.1 here")], NODE, CONFIG
    ).entries.values()
    guard = first.frontends[Frontend.rest(pack("10.96.0.1"))]
    assert all((one.size, one.reject) == (0, True) for one in guard.by_class)
    assert len(second.frontends) == 1, "one guard is enough"


def test_only_an_endpoint_of_this_node_has_the_hairpin_flag() -> None:
    slices = [endpoint_slice("10.0.0.1 here", "10.0.0.2 there", "10.0.0.3 -")]
    (entries,) = evaluate(service(), slices, NODE, CONFIG).entries.values()
    assert [one.hairpin for one in entries.backends] == [True, False, False]
