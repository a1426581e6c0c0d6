"""``loadBalancerSourceRanges``, a sentence for each special case: who may come, and where."""

from __future__ import annotations

from dataclasses import replace

import pytest

from bpfsvc.address import pack, unpack
from bpfsvc.desired import desired
from bpfsvc.model import Service
from bpfsvc.rows import Frontend, PortRows
from tests.rows.objects import CONFIG, HTTP, NODE, endpoint_slice, frontend_words, service

VIP, OTHER_VIP, EXTERNAL = "1.2.3.4", "1.2.3.5", "80.0.0.1"
NODE_IP = "192.168.0.2"
HERE = replace(NODE, addresses=(pack(NODE_IP), pack("2001:db8::1")))


def balanced(*ranges: str, **spec: object) -> Service:
    """A load balancer with everything that a Service can answer on, restricted to ``ranges``."""
    return service(
        type="LoadBalancer",
        ports=[HTTP | {"nodePort": 30080}],
        externalIPs=[EXTERNAL],
        ingress=({"ip": VIP}, {"ip": OTHER_VIP}),
        loadBalancerSourceRanges=list(ranges),
        **spec,  # type: ignore[arg-type]
    )


def rows_of(thing: Service, *, for_all: bool = False, endpoints: str = "10.0.0.1 here") -> PortRows:
    config = replace(CONFIG, source_ranges_for_all=for_all)
    slices = [endpoint_slice(endpoints)] if endpoints else []
    (rows,) = desired(thing, slices, HERE, config).values()
    return rows


def restricted(rows: PortRows) -> list[str]:
    return [frontend_words(one) for one, policies in rows.frontends.items() if policies.restricted]


def ranges(rows: PortRows) -> set[str]:
    return {f"{unpack(network)}/{bits - 96}" for network, bits in rows.ranges}


def test_ranges_restrict_the_addresses_of_the_load_balancer_and_nothing_else() -> None:
    rows = rows_of(balanced("203.0.113.0/25"))
    assert restricted(rows) == [f"{VIP} 80", f"{OTHER_VIP} 80"]
    assert ranges(rows) == {"203.0.113.0/25"}


def test_without_endpoints_strangers_are_still_turned_away_first() -> None:
    rows = rows_of(balanced("203.0.113.0/25"), endpoints="")
    assert restricted(rows) == [f"{VIP} 80", f"{OTHER_VIP} 80"]
    assert all(policies.other.reject for policies in rows.frontends.values())


@pytest.mark.parametrize(
    "given",
    [
        pytest.param([], id="no ranges"),
        pytest.param(["203.0.113.0/25", "0.0.0.0/0"], id="a range that is everything"),
        pytest.param(["2001:db8::/32"], id="ranges of the other family only"),
        pytest.param(["rubbish", "1.2.3.0"], id="nothing that is a range"),
        pytest.param(["::/0"], id="all of the other family"),
    ],
)
def test_everybody_may_come(given: list[str]) -> None:
    rows = rows_of(balanced(*given))
    assert (restricted(rows), rows.ranges) == ([], ())


def test_an_all_embracing_range_of_the_other_family_changes_nothing() -> None:
    assert ranges(rows_of(balanced("203.0.113.0/25", "::/0"))) == {"203.0.113.0/25"}


@pytest.mark.parametrize("text", [" 203.0.113.0/25 ", "203.0.113.000/025", "203.0.113.77/25"])
def test_ranges_are_read_leniently(text: str) -> None:
    assert ranges(rows_of(balanced(text))) == {"203.0.113.0/25"}


def test_a_range_with_the_nodes_address_lets_in_what_uses_the_balancers_as_its_own() -> None:
    assert ranges(rows_of(balanced("192.168.0.0/24"))) == {
        "192.168.0.0/24",
        f"{VIP}/32",
        f"{OTHER_VIP}/32",
    }


def test_the_nodes_other_addresses_do_not_let_it_in() -> None:
    two = replace(HERE, addresses=(pack("10.9.9.9"), pack(NODE_IP)))
    (rows,) = desired(balanced("192.168.0.0/24"), [], two, CONFIG).values()
    assert ranges(rows) == {"192.168.0.0/24"}


def test_an_unknown_node_is_taken_for_loopback() -> None:
    (rows,) = desired(balanced("127.0.0.0/8"), [], NODE, CONFIG).values()
    assert ranges(rows) == {"127.0.0.0/8", f"{VIP}/32", f"{OTHER_VIP}/32"}


def test_an_address_that_is_external_ip_and_load_balancers_is_restricted() -> None:
    thing = service(
        type="LoadBalancer",
        externalIPs=[VIP],
        ingress=({"ip": VIP},),
        loadBalancerSourceRanges=["203.0.113.0/25"],
    )
    assert restricted(rows_of(thing)) == [f"{VIP} 80"]


def test_without_a_restricted_frontend_no_range_is_kept() -> None:
    thing = service(loadBalancerSourceRanges=["203.0.113.0/25"])
    assert rows_of(thing).ranges == ()


def test_as_an_extension_ranges_restrict_all_that_is_outside() -> None:
    rows = rows_of(balanced("203.0.113.0/25"), for_all=True)
    assert restricted(rows) == [f"{EXTERNAL} 80", f"{VIP} 80", f"{OTHER_VIP} 80", "node4 30080"]


def test_each_family_has_its_own_ranges() -> None:
    thing = service(
        type="LoadBalancer",
        clusterIPs=["10.96.0.1", "fd00::1"],
        ipFamilies=["IPv4", "IPv6"],
        ingress=({"ip": VIP}, {"ip": "2001:db8::4"}),
        loadBalancerSourceRanges=["203.0.113.0/25", "2001:db8:1::/48"],
    )
    v4, v6 = desired(thing, [], HERE, CONFIG).values()
    assert [(unpack(net), bits) for net, bits in v4.ranges] == [("203.0.113.0", 121)]
    assert [(unpack(net), bits) for net, bits in v6.ranges] == [("2001:db8:1::", 48)]


# -- session affinity and what is left of a cluster IP: also said of frontends --


def test_affinity_holds_wherever_the_service_answers() -> None:
    config = {"clientIP": {"timeoutSeconds": 60}}
    rows = rows_of(balanced(sessionAffinity="ClientIP", sessionAffinityConfig=config))
    kept = {
        frontend_words(one): policies.affinity_seconds for one, policies in rows.frontends.items()
    }
    places = ("10.96.0.1 80", f"{EXTERNAL} 80", f"{VIP} 80", f"{OTHER_VIP} 80", "node4 30080")
    assert kept == dict.fromkeys(places, 60) | {"10.96.0.1 rest": 0}


def test_affinity_lasts_three_hours_unless_told_otherwise() -> None:
    rows = rows_of(service(sessionAffinity="ClientIP"))
    assert {one.affinity_seconds for one in rows.frontends.values()} == {10800, 0}


def test_what_no_port_of_a_cluster_ip_takes_is_refused_to_everybody() -> None:
    thing = service(ports=[HTTP, {"name": "dns", "port": 53, "protocol": "UDP"}])
    first, second = desired(thing, [endpoint_slice("10.0.0.1 here")], NODE, CONFIG).values()
    guard = first.frontends[Frontend.rest(pack("10.96.0.1"))]
    assert all((one.size, one.reject) == (0, True) for one in guard.by_class)
    assert len(second.frontends) == 1, "one guard is enough"


def test_only_an_endpoint_known_to_be_of_this_node_is_masqueraded_as_its_own_client() -> None:
    slices = [endpoint_slice("10.0.0.1 here", "10.0.0.2 there", "10.0.0.3 -")]
    (rows,) = desired(service(), slices, NODE, CONFIG).values()
    assert [one.hairpin for one in rows.backends] == [True, False, False]
