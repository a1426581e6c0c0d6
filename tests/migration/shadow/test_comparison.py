"""These objects, this connection in netfilter's table: does bpfsvc agree with kube-proxy?"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from bpfsvc.services.rules.context import ServiceConfig
from bpfsvc.services.rules.nodeport_addresses import NodePortAddresses
from tests.migration.shadow.node import NODE, OTHER_POD, OUTSIDE, POD, VIEW, ShadowNode
from tests.migration.values import network
from tests.services.objects import HTTP, endpoint_slice, service

LOCAL, REMOTE, GONE = "10.244.1.5", "10.244.2.6", "10.244.3.9"
SLICE = endpoint_slice(f"{LOCAL} here", f"{REMOTE} there")
VIP = "10.96.0.1:80"
NODE_PORT = {"name": "http", "port": 80, "nodePort": 30080}


def at(address: str) -> str:
    return f"{address}:8080"


def test_a_pod_keeps_its_address_at_a_cluster_ip_and_may_get_every_backend() -> None:
    node = ShadowNode(service(), SLICE)
    assert node.kind(OTHER_POD, VIP, at(LOCAL)) == ""
    assert node.kind(OTHER_POD, VIP, at(REMOTE)) == ""
    assert node.kind(OTHER_POD, VIP, at(REMOTE), seen=NODE) == "masqueraded"


def test_a_backend_that_is_no_endpoint_is_named_with_those_that_are() -> None:
    comparison = ShadowNode(service(), SLICE).compare(POD, VIP, at(GONE))
    assert comparison is not None
    assert (comparison.service, comparison.kind) == (("default", "web"), "not_eligible")
    assert comparison.text == (
        "TCP 10.244.1.5:40000 -> 10.96.0.1:80, to 10.244.3.9:8080: kube-proxy chose a backend that"
        " bpfsvc would not choose (eligible: 10.244.1.5:8080, 10.244.2.6:8080)"
    )


def test_the_wrong_port_of_a_backend_is_another_backend() -> None:
    assert ShadowNode(service(), SLICE).kind(OTHER_POD, VIP, f"{LOCAL}:9090") == "not_eligible"


def test_clients_outside_are_masqueraded_at_a_cluster_ip() -> None:
    node = ShadowNode(service(), SLICE)
    assert node.kind(OUTSIDE, VIP, at(REMOTE), seen=NODE) == ""
    assert node.kind(OUTSIDE, VIP, at(REMOTE)) == "not_masqueraded"


def test_a_pod_that_is_its_own_backend_is_masqueraded() -> None:
    node = ShadowNode(service(), SLICE)
    assert node.kind(LOCAL, VIP, at(LOCAL), seen=NODE) == ""
    assert node.kind(LOCAL, VIP, at(LOCAL)) == "not_masqueraded"


def test_the_node_itself_has_one_address_masqueraded_or_not() -> None:
    node = ShadowNode(service(), SLICE)
    assert node.kind(NODE, VIP, at(REMOTE)) == ""
    assert node.kind(NODE, VIP, at(REMOTE), seen=NODE) == ""
    assert node.kind(NODE, VIP, at(GONE)) == "not_eligible"


@pytest.mark.parametrize("policy", ["externalTrafficPolicy", "internalTrafficPolicy"])
def test_policy_local_keeps_to_endpoints_of_this_node(policy: str) -> None:
    made = service(type="NodePort", ports=[NODE_PORT], **{policy: "Local"})
    node = ShadowNode(made, SLICE)
    asked = f"{NODE}:30080" if policy == "externalTrafficPolicy" else VIP
    seen = "" if policy == "externalTrafficPolicy" else NODE
    assert node.kind(OUTSIDE, asked, at(LOCAL), seen=seen) == ""
    assert node.kind(OUTSIDE, asked, at(REMOTE), seen=seen) == "not_eligible"


def test_external_local_keeps_the_clients_address_and_pods_reach_every_endpoint() -> None:
    made = service(type="NodePort", ports=[NODE_PORT], externalTrafficPolicy="Local")
    node = ShadowNode(made, SLICE)
    assert node.kind(OUTSIDE, f"{NODE}:30080", at(LOCAL), seen=NODE) == "masqueraded"
    assert node.kind(OTHER_POD, f"{NODE}:30080", at(REMOTE)) == ""


def test_a_local_service_without_local_endpoints_is_dropped() -> None:
    made = service(type="NodePort", ports=[NODE_PORT], externalTrafficPolicy="Local")
    node = ShadowNode(made, endpoint_slice(f"{REMOTE} there"))
    assert node.kind(OUTSIDE, f"{NODE}:30080", at(REMOTE), seen=NODE) == "not_dropped"
    assert node.kind(OUTSIDE, f"{NODE}:30080") == "not_dropped"


def test_a_service_without_endpoints_is_refused() -> None:
    node = ShadowNode(service())
    assert node.kind(POD, VIP) == "not_refused"
    assert node.kind(POD, VIP, at(GONE)) == "not_refused"


def test_hints_and_draining_endpoints_count_as_in_the_entries() -> None:
    slices = endpoint_slice(f"{LOCAL} here a#", f"{REMOTE} there here#", f"{GONE} there draining")
    node = ShadowNode(service(), slices)
    assert node.kind(OTHER_POD, VIP, at(REMOTE)) == ""
    assert node.kind(OTHER_POD, VIP, at(LOCAL)) == "not_eligible"
    assert node.kind(OTHER_POD, VIP, at(GONE)) == "not_eligible"
    node.apply(endpoint_slice(f"{GONE} there draining"))
    node.wait(60)
    assert node.kind(OTHER_POD, VIP, at(GONE)) == ""


def test_a_connection_that_kube_proxy_leaves_as_it_is_was_not_translated() -> None:
    node = ShadowNode(service(type="NodePort", ports=[NODE_PORT]), SLICE)
    assert node.kind(POD, VIP) == "not_translated"
    assert node.kind(OUTSIDE, f"{NODE}:30080") == "not_translated"


def test_a_cluster_ip_that_the_node_holds_may_be_left_to_its_listener() -> None:
    """NodeLocal DNSCache binds the cluster IP of the cluster's DNS."""
    holds = replace(VIEW, addresses=VIEW.addresses | {b"\0" * 10 + b"\xff\xff\x0a\x60\0\x01"})
    assert ShadowNode(service(), SLICE, view=holds).kind(POD, VIP) == ""


def test_connections_to_other_addresses_are_none_of_ours() -> None:
    node = ShadowNode(service(), SLICE)
    assert node.kind(POD, "10.244.2.6:8080") == "-"
    assert node.kind(POD, "198.51.100.1:443", seen=NODE) == "-"
    assert node.kind(OUTSIDE, f"{NODE}:22") == "-"


@pytest.mark.parametrize(
    ("asked", "backend", "kind"),
    [
        ("10.96.0.99:80", GONE, "unknown_frontend"),  # a cluster IP
        (f"{NODE}:30099", GONE, "unknown_frontend"),  # a NodePort
        ("203.0.113.80:80", LOCAL, "unknown_frontend"),  # a load balancer's address
        (f"{NODE}:8443", LOCAL, "-"),  # a hostPort
        ("169.254.169.254:80", NODE, "-"),  # an agent of the cloud's roles
    ],
)
def test_what_only_kube_proxy_can_have_translated_has_an_unknown_frontend(
    asked: str, backend: str, kind: str
) -> None:
    assert ShadowNode(service(), SLICE).kind(OUTSIDE, asked, at(backend), seen=NODE) == kind


def test_other_ports_of_a_cluster_ip_are_refused_except_in_mode_iptables() -> None:
    assert ShadowNode(service(), SLICE).kind(POD, "10.96.0.1:81") == "not_refused"
    assert ShadowNode(service(), SLICE, mode="iptables").kind(POD, "10.96.0.1:81") == ""
    assert ShadowNode(service(), SLICE, mode="iptables").kind(POD, "10.96.0.1:81", at(LOCAL))


def test_clients_outside_of_the_source_ranges_are_dropped() -> None:
    made = service(
        type="LoadBalancer",
        ingress=({"ip": "203.0.113.80"},),
        loadBalancerSourceRanges=["203.0.113.0/28"],
    )
    node = ShadowNode(made, SLICE)
    assert node.kind(OUTSIDE, "203.0.113.80:80", at(LOCAL), seen=NODE) == ""
    assert node.kind("203.0.113.99", "203.0.113.80:80", at(LOCAL), seen=NODE) == "not_dropped"


def test_node_ports_answer_where_the_configuration_says() -> None:
    """127.0.0.1 is one address of many, and a port of another machine is none of this node's."""
    node = ShadowNode(service(type="NodePort", ports=[NODE_PORT]), SLICE)
    assert node.kind("127.0.0.1", "127.0.0.1:30080", at(REMOTE), seen=NODE) == ""
    assert node.kind("127.0.0.1", "127.0.0.9:30080", at(GONE), seen=NODE) == "not_eligible"
    assert node.kind(POD, "192.168.50.12:30080") == "-"


def test_node_ports_on_loopback_may_be_served_without_a_translation() -> None:
    """By a process of kube-proxy, which the comparison does not see; not in mode iptables."""
    made = service(type="NodePort", ports=[NODE_PORT])
    loopback = ("127.0.0.1", "127.0.0.1:30080")
    assert ShadowNode(made, SLICE).kind(*loopback) == ""
    assert ShadowNode(made, SLICE, mode="iptables").kind(*loopback) == "not_translated"
    dual = service(
        type="NodePort",
        ports=[NODE_PORT],
        clusterIPs=["10.96.0.1", "fd96::1"],
        ipFamilies=["IPv4", "IPv6"],
    )
    named = NodePortAddresses((network("::1/128"),))
    node = ShadowNode(dual, SLICE, view=replace(VIEW, node_ports=named), mode="iptables")
    assert node.kind("::1", "[::1]:30080") == ""
    assert node.kind("::1", "[::1]:30081") == "-"


def test_a_backend_at_the_nodes_own_address_sees_the_client() -> None:
    """The packet never leaves, so that nothing masquerades it."""
    made = service(type="NodePort", ports=[NODE_PORT])
    node = ShadowNode(made, endpoint_slice(f"{NODE} here"))
    assert node.kind(OUTSIDE, f"{NODE}:30080", at(NODE)) == ""


def test_what_pods_send_out_of_the_pod_network_may_be_masqueraded_by_the_cni() -> None:
    node = ShadowNode(service(), endpoint_slice("192.168.50.1 -"))
    assert node.kind(POD, VIP, at("192.168.50.1")) == ""
    assert node.kind(POD, VIP, at("192.168.50.1"), seen=NODE) == ""


def test_without_a_detector_of_addresses_both_classes_of_clients_are_right() -> None:
    view = replace(VIEW, pods=(), by_interface=True)
    node = ShadowNode(service(), SLICE, view=view)
    assert node.kind(POD, VIP, at(REMOTE)) == ""
    assert node.kind(POD, VIP, at(REMOTE), seen=NODE) == ""
    assert node.kind(POD, VIP, at(GONE)) == "not_eligible"


def test_datagrams_and_both_families_are_compared() -> None:
    ports = [HTTP, {"name": "dns", "port": 53, "protocol": "UDP"}]
    made = service(clusterIP="fd96::1", clusterIPs=["fd96::1"], ipFamilies=["IPv6"], ports=ports)
    slices = endpoint_slice(
        "fd00::5 here", ports=({"name": "dns", "port": 5353, "protocol": "UDP"},)
    )
    node = ShadowNode(made, slices, config=ServiceConfig(detector_v6=False))
    asked = "[fd96::1]:53"
    assert node.kind("fd00::9", asked, "[fd00::5]:5353", protocol="UDP") == ""
    assert node.kind("fd00::9", asked, "[fd00::6]:5353", protocol="UDP") == "not_eligible"


# -- changes --


def test_a_connection_may_fit_any_state_of_the_last_seconds() -> None:
    """kube-proxy learns of a change later, or earlier, than this agent."""
    node = ShadowNode(service(), SLICE)
    node.apply(endpoint_slice(f"{GONE} there"))
    assert node.kind(OTHER_POD, VIP, at(REMOTE)) == ""
    assert node.kind(OTHER_POD, VIP, at(GONE)) == ""
    node.wait(9)
    assert node.kind(OTHER_POD, VIP, at(REMOTE)) == ""
    node.wait(2)
    assert node.kind(OTHER_POD, VIP, at(REMOTE)) == "not_eligible"
    assert node.kind(OTHER_POD, VIP, at(GONE)) == ""


def test_a_service_that_comes_or_goes_is_both_for_some_seconds() -> None:
    node = ShadowNode(service(), SLICE)
    node.apply(gone=("web",))
    assert node.kind(OTHER_POD, VIP, at(REMOTE)) == ""
    assert node.kind(OTHER_POD, VIP) in ("", "-")
    node.wait(11)
    assert node.kind(OTHER_POD, VIP, at(REMOTE)) == "unknown_frontend"
    node.apply(service())
    assert node.kind(OTHER_POD, VIP, at(REMOTE)) == ""
    node.wait(11)
    assert node.kind(OTHER_POD, VIP) == "not_translated"


def test_the_state_counts_that_was_when_the_connection_began() -> None:
    """Comparing waits some seconds, as kube-proxy may hear of a change first."""
    node = ShadowNode(service(), SLICE)
    node.wait(5)
    node.apply(endpoint_slice(f"{GONE} there"))
    node.wait(1)
    assert node.kind(OTHER_POD, VIP, at(GONE), ago=2.0) == ""


def test_an_address_that_the_node_gets_counts_before_and_after() -> None:
    node = ShadowNode(service(type="NodePort", ports=[NODE_PORT]), SLICE)
    more = replace(VIEW, addresses=VIEW.addresses | {b"\0" * 10 + b"\xff\xff\xc0\xa8\x32\x0c"})
    node.history.set_view(more, node.now)
    assert node.kind(OUTSIDE, "192.168.50.12:30080", at(LOCAL), seen=NODE) == ""
    assert node.kind(OUTSIDE, "192.168.50.12:30080") == ""
    node.wait(11)
    assert node.kind(OUTSIDE, "192.168.50.12:30080") == "not_translated"


# -- session affinity --

AFFINITY: dict[str, Any] = {
    "sessionAffinity": "ClientIP",
    "sessionAffinityConfig": {"clientIP": {"timeoutSeconds": 100}},
}


def test_a_client_that_returns_must_get_the_same_backend() -> None:
    node = ShadowNode(service(**AFFINITY), SLICE)
    assert node.kind(OTHER_POD, VIP, at(LOCAL)) == ""
    node.wait(50)
    assert node.kind(OTHER_POD, VIP, at(LOCAL)) == ""
    node.wait(60)
    assert node.kind(OTHER_POD, VIP, at(REMOTE)) == "affinity"
    assert node.kind("10.244.2.8", VIP, at(LOCAL)) == ""


def test_affinity_ends_after_its_time_and_with_its_backend() -> None:
    node = ShadowNode(service(**AFFINITY), SLICE)
    assert node.kind(OTHER_POD, VIP, at(LOCAL)) == ""
    node.wait(101)
    assert node.kind(OTHER_POD, VIP, at(REMOTE)) == ""
    node.wait(50)
    node.apply(endpoint_slice(f"{LOCAL} here"))
    assert node.kind(OTHER_POD, VIP, at(LOCAL)) == ""


def test_two_connections_at_once_may_get_two_backends() -> None:
    node = ShadowNode(service(**AFFINITY), SLICE)
    assert node.kind(OTHER_POD, VIP, at(LOCAL)) == ""
    node.wait(0.1)
    assert node.kind(OTHER_POD, VIP, at(REMOTE)) == ""


@pytest.mark.parametrize(("mode", "kind"), [("iptables", ""), ("nftables", "affinity")])
def test_mode_iptables_remembers_a_hundred_clients(mode: str, kind: str) -> None:
    node = ShadowNode(service(**AFFINITY), SLICE, mode=mode)
    for number in range(1, 102):
        assert node.kind(f"10.244.9.{number}", VIP, at(LOCAL)) == ""
    node.wait(10)
    assert node.kind("10.244.9.1", VIP, at(REMOTE)) == kind


def test_without_affinity_a_client_may_get_any_backend_any_time() -> None:
    node = ShadowNode(service(), SLICE)
    for backend in (LOCAL, REMOTE, LOCAL):
        assert node.kind(OTHER_POD, VIP, at(backend)) == ""
        node.wait(10)
