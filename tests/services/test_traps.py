"""Typical mistakes of kube-proxy replacements: one test for each, in the order of the list.

``tests/lab/test_traffic_hitless.py`` shows that state outlives the agent (13); the tests of the
server show the answer of /healthz on a node that is leaving (14).
"""

from __future__ import annotations

from typing import Any

from bpfsvc.base.address import pack
from bpfsvc.devtools.lab.objects import service_cidr
from bpfsvc.model import Node, Service, read_object
from bpfsvc.services.cache import Cache
from bpfsvc.services.rules.context import NodeContext, ServiceConfig
from bpfsvc.services.rules.nodeport_addresses import OPEN, SHUT, resolve
from bpfsvc.services.rules.udp_endpoints import UdpEndpoints
from bpfsvc.services.rules.view import evaluate
from tests.services.objects import CONFIG, HTTP, NODE, answers, endpoint_slice, raw_service, service

HERE, THERE = "10.0.1.1 here", "10.0.2.1 there"
VIP = "1.2.3.4"
BALANCED: dict[str, Any] = {"type": "LoadBalancer", "ingress": ({"ip": VIP},)}
DNS = {"name": "dns", "port": 53, "protocol": "UDP", "nodePort": 30053}


def answers_at(
    of: Service, endpoints: list[str], where: str, config: ServiceConfig = CONFIG
) -> tuple[str, str, str]:
    """Return what a pod, this node and others meet at a frontend."""
    return answers(evaluate(of, [endpoint_slice(*endpoints)], NODE, config).entries, where)


def test_1_refusal_or_drop_depends_on_endpoints_of_all_nodes() -> None:
    local = service(internalTrafficPolicy="Local")
    assert answers_at(local, [THERE], "10.96.0.1 80") == ("silence",) * 3
    assert answers_at(local, [f"{THERE} dead"], "10.96.0.1 80") == ("refused",) * 3


def test_2_external_local_gives_pods_and_the_node_all_endpoints_and_pods_unmasqueraded() -> None:
    local = service(**BALANCED, externalTrafficPolicy="Local")
    everywhere = "to 10.0.1.1:8080 10.0.2.1:8080"
    assert answers_at(local, [HERE, THERE], f"{VIP} 80") == (
        everywhere,
        f"{everywhere} masqueraded",
        "to 10.0.1.1:8080",
    )


def test_3_external_cluster_masquerades_pods_too() -> None:
    assert (
        answers_at(service(**BALANCED), [HERE], f"{VIP} 80")
        == ("to 10.0.1.1:8080 masqueraded",) * 3
    )


def test_4_draining_endpoints_serve_separately_for_the_cluster_and_for_the_node() -> None:
    local = service(**BALANCED, externalTrafficPolicy="Local")
    endpoints = [f"{HERE} draining", THERE]
    assert answers_at(local, endpoints, "10.96.0.1 80")[0] == "to 10.0.2.1:8080"
    assert answers_at(local, endpoints, f"{VIP} 80")[2] == "to 10.0.1.1:8080"


def test_5_health_checks_count_ready_addresses_only_while_draining_ones_serve() -> None:
    local = service(**BALANCED, externalTrafficPolicy="Local", healthCheckNodePort=31000)
    slices = [endpoint_slice(f"{HERE} draining")]
    assert evaluate(local, slices, NODE, CONFIG).summary.health_checks[4].local_endpoints == 0
    assert (
        answers(evaluate(local, slices, NODE, CONFIG).entries, f"{VIP} 80")[2] == "to 10.0.1.1:8080"
    )


def test_6_hints_count_if_every_ready_endpoint_has_one_also_externally_but_never_for_local() -> (
    None
):
    near, far = "10.0.1.1 here zone-a@", "10.0.2.1 there zone-b@"
    assert (
        answers_at(service(**BALANCED), [near, far], f"{VIP} 80")[2]
        == "to 10.0.1.1:8080 masqueraded"
    )
    without = [near, far, "10.0.3.1 there"]
    assert answers_at(service(), without, "10.96.0.1 80")[0].count(":8080") == 3
    local = service(internalTrafficPolicy="Local")
    hinted_away = "10.0.1.1 here zone-b@"
    assert answers_at(local, [hinted_away, far], "10.96.0.1 80")[0] == "to 10.0.1.1:8080"


def test_7_source_ranges_hold_at_the_load_balancers_address_and_for_all_clients() -> None:
    def restricted(*ranges: str, node: NodeContext = NODE) -> tuple[set[str], int]:
        made = service(**BALANCED, loadBalancerSourceRanges=list(ranges))
        (entries,) = evaluate(made, [endpoint_slice(HERE)], node, CONFIG).entries.values()
        found = {one.address for one, policies in entries.frontends.items() if policies.restricted}
        return {"vip" if one == pack(VIP) else "other" for one in found}, len(entries.ranges)

    assert restricted("203.0.113.0/24") == ({"vip"}, 1)
    assert restricted("203.0.113.0/24", "0.0.0.0/0") == (set(), 0)
    assert restricted("2001:db8::/32") == (set(), 0)
    here = NodeContext("here", "zone-a", (pack("203.0.113.7"),))
    assert restricted("203.0.113.0/24", node=here) == ({"vip"}, 2)


def test_8_node_port_addresses_of_one_family_accept_all_of_the_other_and_primary_may_too() -> None:
    node = Node("here", addresses=(pack("192.168.0.2"),))
    for setting in (("192.168.0.0/24",), ("primary",)):
        resolved = resolve(setting, node, localhost=False)
        assert resolved.state(pack("192.168.0.2")) == OPEN
        assert resolved.state(pack("192.168.1.2")) == SHUT
        assert resolved.state(pack("2001:db8::7")) == OPEN


def test_9_a_family_without_a_cluster_ip_has_no_frontends() -> None:
    single = service(
        type="LoadBalancer",
        ports=[HTTP | {"nodePort": 30080}],
        ingress=({"ip": "2001:db8::1"},),
        externalTrafficPolicy="Local",
        healthCheckNodePort=31000,
    )
    slices = [endpoint_slice("fd44::1 here")]
    entries = evaluate(single, slices, NODE, CONFIG).entries
    assert answers(entries, "node6 30080") == answers(entries, "2001:db8::1 80") == ("nothing",) * 3
    assert 6 not in evaluate(single, slices, NODE, CONFIG).summary.health_checks


def test_10_udp_clients_follow_serving_endpoints_whatever_the_policy_unless_none_is_left() -> None:
    serving, key = UdpEndpoints(), ("default", "web")
    local = service(ports=[DNS], internalTrafficPolicy="Local")
    ports = ({"name": "dns", "port": 5353, "protocol": "UDP"},)

    def gone(*endpoints: str) -> list[str]:
        view = evaluate(local, [endpoint_slice(*endpoints, ports=ports)], NODE, CONFIG)
        changes = serving.update(key, view.summary.udp_serving)
        return [str(len(change.gone)) for change in changes]

    gone(HERE, THERE)
    assert gone(HERE, f"{THERE} draining") == []
    assert gone(HERE) == ["1"]
    assert gone() == []


def test_11_without_a_detector_external_clients_are_not_masqueraded_at_a_cluster_ip() -> None:
    blind = ServiceConfig(detector_v4=False)
    assert answers_at(service(), [HERE], "10.96.0.1 80", blind) == ("to 10.0.1.1:8080",) * 3
    (entries,) = evaluate(service(), [endpoint_slice(HERE)], NODE, blind).entries.values()
    assert [backend.hairpin for backend in entries.backends] == [True]


def test_12_an_empty_label_excludes_a_service_and_may_be_added_and_removed() -> None:
    cluster, label = Cache("here"), "service.kubernetes.io/service-proxy-name"
    for labels, is_proxied in (({}, True), ({label: ""}, False), ({}, True)):
        assert cluster.apply(read_object(raw_service(labels=labels)), ()) == {("default", "web")}
        known = cluster.lookup(("default", "web")).service
        assert known is not None
        assert known.is_proxied == is_proxied


def test_15_a_service_cidr_that_is_added_later_counts() -> None:
    """kube-proxy enforces it with the next full sync only, up to an hour later."""
    cluster = Cache("here")
    raw = service_cidr("10.97.0.0/16", name="more")
    assert cluster.service_networks() == set()
    cluster.apply(read_object(raw), ())
    assert len(cluster.service_networks()) == 1


def test_16_flows_to_another_machine_on_the_number_of_a_node_port_are_left_alone() -> None:
    """kube-proxy may remove them by the port alone. Here a NodePort also needs a node address."""
    entries = evaluate(service(ports=[DNS]), [], NODE, CONFIG).entries
    assert answers(entries, "10.9.9.9 30053 UDP") == ("nothing",) * 3
