"""Where replacements of kube-proxy go wrong: one test for each trap, in the order of the list.

That state outlives the agent (13) is shown by ``tests/lab/test_traffic_hitless.py``; what /healthz
says of a node that is leaving (14) is asked of the server.
"""

from __future__ import annotations

from typing import Any

from bpfsvc.address import pack
from bpfsvc.cluster import Cluster
from bpfsvc.desired import ServiceConfig, desired
from bpfsvc.localhealth import checks
from bpfsvc.model import Node, Service, read_object
from bpfsvc.nodeports import OPEN, SHUT, resolve
from bpfsvc.serving import Serving
from bpfsvc.surroundings import NodeContext
from tests.rows.objects import (
    CONFIG,
    HTTP,
    NODE,
    answers,
    endpoint_slice,
    raw_service,
    service,
)

HERE, THERE = "10.0.1.1 here", "10.0.2.1 there"
VIP = "1.2.3.4"
BALANCED: dict[str, Any] = {"type": "LoadBalancer", "ingress": ({"ip": VIP},)}
DNS = {"name": "dns", "port": 53, "protocol": "UDP", "nodePort": 30053}


def meets(
    of: Service, endpoints: list[str], where: str, config: ServiceConfig = CONFIG
) -> tuple[str, str, str]:
    """Say what a pod, this node and others meet at a frontend."""
    return answers(desired(of, [endpoint_slice(*endpoints)], NODE, config), where)


def test_1_refusal_or_silence_hinges_on_endpoints_of_all_nodes() -> None:
    local = service(internalTrafficPolicy="Local")
    assert meets(local, [THERE], "10.96.0.1 80") == ("silence",) * 3
    assert meets(local, [f"{THERE} dead"], "10.96.0.1 80") == ("refused",) * 3


def test_2_external_local_lets_pods_and_the_node_go_anywhere_and_pods_unmasqueraded() -> None:
    local = service(**BALANCED, externalTrafficPolicy="Local")
    everywhere = "to 10.0.1.1:8080 10.0.2.1:8080"
    assert meets(local, [HERE, THERE], f"{VIP} 80") == (
        everywhere,
        f"{everywhere} masqueraded",
        "to 10.0.1.1:8080",
    )


def test_3_external_cluster_masquerades_pods_too() -> None:
    assert meets(service(**BALANCED), [HERE], f"{VIP} 80") == ("to 10.0.1.1:8080 masqueraded",) * 3


def test_4_draining_endpoints_stand_in_for_the_cluster_and_for_the_node_apart() -> None:
    local = service(**BALANCED, externalTrafficPolicy="Local")
    endpoints = [f"{HERE} draining", THERE]
    assert meets(local, endpoints, "10.96.0.1 80")[0] == "to 10.0.2.1:8080"
    assert meets(local, endpoints, f"{VIP} 80")[2] == "to 10.0.1.1:8080"


def test_5_health_checks_count_ready_addresses_only_while_draining_ones_serve() -> None:
    local = service(**BALANCED, externalTrafficPolicy="Local", healthCheckNodePort=31000)
    slices = [endpoint_slice(f"{HERE} draining")]
    assert checks(local, slices, "here")[4].local_endpoints == 0
    assert answers(desired(local, slices, NODE, CONFIG), f"{VIP} 80")[2] == "to 10.0.1.1:8080"


def test_6_hints_count_if_every_ready_endpoint_has_one_also_outside_and_never_for_local() -> None:
    near, far = "10.0.1.1 here zone-a@", "10.0.2.1 there zone-b@"
    assert meets(service(**BALANCED), [near, far], f"{VIP} 80")[2] == "to 10.0.1.1:8080 masqueraded"
    without = [near, far, "10.0.3.1 there"]
    assert meets(service(), without, "10.96.0.1 80")[0].count(":8080") == 3
    local = service(internalTrafficPolicy="Local")
    hinted_away = "10.0.1.1 here zone-b@"
    assert meets(local, [hinted_away, far], "10.96.0.1 80")[0] == "to 10.0.1.1:8080"


def test_7_source_ranges_are_for_the_load_balancers_address_and_bind_everybody() -> None:
    def restricted(*ranges: str, node: NodeContext = NODE) -> tuple[set[str], int]:
        made = service(**BALANCED, loadBalancerSourceRanges=list(ranges))
        (rows,) = desired(made, [endpoint_slice(HERE)], node, CONFIG).values()
        found = {one.address for one, policies in rows.frontends.items() if policies.restricted}
        return {"vip" if one == pack(VIP) else "other" for one in found}, len(rows.ranges)

    assert restricted("203.0.113.0/24") == ({"vip"}, 1)
    assert restricted("203.0.113.0/24", "0.0.0.0/0") == (set(), 0)
    assert restricted("2001:db8::/32") == (set(), 0)
    here = NodeContext("here", "zone-a", (pack("203.0.113.7"),))
    assert restricted("203.0.113.0/24", node=here) == ({"vip"}, 2)


def test_8_node_port_addresses_of_one_family_open_the_other_and_primary_may_do_so() -> None:
    node = Node("here", addresses=(pack("192.168.0.2"),))
    for setting in (("192.168.0.0/24",), ("primary",)):
        resolved = resolve(setting, node, localhost=False)
        assert resolved.state(pack("192.168.0.2")) == OPEN
        assert resolved.state(pack("192.168.1.2")) == SHUT
        assert resolved.state(pack("2001:db8::7")) == OPEN


def test_9_without_a_cluster_ip_in_a_family_there_is_nothing_of_it() -> None:
    single = service(
        type="LoadBalancer",
        ports=[HTTP | {"nodePort": 30080}],
        ingress=({"ip": "2001:db8::1"},),
        externalTrafficPolicy="Local",
        healthCheckNodePort=31000,
    )
    slices = [endpoint_slice("fd44::1 here")]
    rows = desired(single, slices, NODE, CONFIG)
    assert answers(rows, "node6 30080") == answers(rows, "2001:db8::1 80") == ("nothing",) * 3
    assert 6 not in checks(single, slices, "here")


def test_10_udp_is_let_go_by_who_serves_whatever_the_policy_and_not_with_nobody_left() -> None:
    serving, key = Serving(), ("default", "web")
    local = service(ports=[DNS], internalTrafficPolicy="Local")
    ports = ({"name": "dns", "port": 5353, "protocol": "UDP"},)

    def gone(*endpoints: str) -> list[str]:
        changes = serving.changes(key, local, [endpoint_slice(*endpoints, ports=ports)])
        return [str(len(change.gone)) for change in changes]

    gone(HERE, THERE)
    assert gone(HERE, f"{THERE} draining") == []
    assert gone(HERE) == ["1"]
    assert gone() == []


def test_11_without_a_detector_strangers_are_not_masqueraded_at_a_cluster_ip() -> None:
    blind = ServiceConfig(detector_v4=False)
    assert meets(service(), [HERE], "10.96.0.1 80", blind) == ("to 10.0.1.1:8080",) * 3
    (rows,) = desired(service(), [endpoint_slice(HERE)], NODE, blind).values()
    assert [backend.hairpin for backend in rows.backends] == [True]


def test_12_an_empty_label_excludes_and_may_come_and_go() -> None:
    cluster, label = Cluster("here"), "service.kubernetes.io/service-proxy-name"
    for labels, is_proxied in (({}, True), ({label: ""}, False), ({}, True)):
        assert cluster.apply(read_object(raw_service(labels=labels)), ()) == {("default", "web")}
        known = cluster.lookup(("default", "web")).service
        assert known is not None
        assert known.is_proxied == is_proxied


def test_15_a_service_cidr_that_comes_later_counts() -> None:
    """kube-proxy enforces it with the next full sync only, up to an hour later."""
    cluster = Cluster("here")
    raw = {
        "apiVersion": "networking.k8s.io/v1",
        "kind": "ServiceCIDR",
        "metadata": {"name": "more"},
        "spec": {"cidrs": ["10.97.0.0/16"]},
    }
    assert cluster.service_networks() == set()
    cluster.apply(read_object(raw), ())
    assert len(cluster.service_networks()) == 1


def test_16_flows_to_another_machine_on_the_number_of_a_node_port_are_nobodys() -> None:
    """kube-proxy may cut them, by their port alone. Here a NodePort is an address's too."""
    rows = desired(service(ports=[DNS]), [], NODE, CONFIG)
    assert answers(rows, "10.9.9.9 30053 UDP") == ("nothing",) * 3
