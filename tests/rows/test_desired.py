"""The rules of Kubernetes, a sentence each: Service, endpoints and node in, answers out."""

from __future__ import annotations

from dataclasses import replace

import pytest

from bpfsvc.desired import NodeContext, ServiceConfig, desired
from bpfsvc.model import EndpointSlice, Service
from tests.rows.objects import (
    CONFIG,
    HTTP,
    NODE,
    answers,
    endpoint_slice,
    frontend_words,
    service,
)

HERE, THERE = "10.0.1.1 here", "10.0.2.1 there"
NO_DETECTOR = ServiceConfig(detector_v4=False, detector_v6=False)

NODE_PORT = service(type="NodePort", ports=[HTTP | {"nodePort": 30080}])
NODE_PORT_LOCAL = service(
    type="NodePort", ports=[HTTP | {"nodePort": 30080}], externalTrafficPolicy="Local"
)
BALANCED = service(type="LoadBalancer", ingress=({"ip": "1.2.3.4"},))
BALANCED_LOCAL = service(
    type="LoadBalancer", ingress=({"ip": "1.2.3.4"},), externalTrafficPolicy="Local"
)
INTERNAL_LOCAL = service(internalTrafficPolicy="Local")

BOTH = "to 10.0.1.1:8080 10.0.2.1:8080"
BOTH_MASQUERADED = f"{BOTH} masqueraded"
LOCAL = "to 10.0.1.1:8080"
REMOTE = "to 10.0.2.1:8080"

# sentence, Service, endpoints, frontend, what a pod / this node / others meet
POLICIES = [
    (
        "a cluster IP keeps a pod's address and masquerades strangers",
        service(),
        [HERE, THERE],
        "10.96.0.1 80",
        (BOTH, BOTH_MASQUERADED, BOTH_MASQUERADED),
    ),
    (
        "a cluster IP without endpoints refuses",
        service(),
        [],
        "10.96.0.1 80",
        ("refused",) * 3,
    ),
    (
        "endpoints that are all unready or dead are nobody",
        service(),
        ["10.0.1.1 here unready", "10.0.1.2 here dead"],
        "10.96.0.1 80",
        ("refused",) * 3,
    ),
    (
        "a cluster IP does not answer on the node port's number",
        NODE_PORT,
        [HERE],
        "10.96.0.1 30080",
        ("nothing",) * 3,
    ),
    (
        "a node address does not answer on the service port",
        NODE_PORT,
        [HERE],
        "node4 80",
        ("nothing",) * 3,
    ),
    (
        "internal Local picks only this node's endpoints",
        INTERNAL_LOCAL,
        [HERE, THERE],
        "10.96.0.1 80",
        (LOCAL, f"{LOCAL} masqueraded", f"{LOCAL} masqueraded"),
    ),
    (
        "internal Local stays silent when all endpoints are elsewhere",
        INTERNAL_LOCAL,
        [THERE],
        "10.96.0.1 80",
        ("silence",) * 3,
    ),
    (
        "internal Local refuses when there is no endpoint anywhere",
        INTERNAL_LOCAL,
        [],
        "10.96.0.1 80",
        ("refused",) * 3,
    ),
    (
        "internal Local says nothing about node ports",
        service(type="NodePort", ports=[HTTP | {"nodePort": 30080}], internalTrafficPolicy="Local"),
        [HERE, THERE],
        "node4 30080",
        (BOTH_MASQUERADED,) * 3,
    ),
    (
        "an endpoint without nodeName is never local",
        INTERNAL_LOCAL,
        ["10.0.1.1 -"],
        "10.96.0.1 80",
        ("silence",) * 3,
    ),
    (
        "a node port masquerades everybody, pods too",
        NODE_PORT,
        [HERE, THERE],
        "node4 30080",
        (BOTH_MASQUERADED,) * 3,
    ),
    (
        "a node port without endpoints refuses",
        NODE_PORT,
        [],
        "node4 30080",
        ("refused",) * 3,
    ),
    (
        "external Local keeps outsiders' addresses; pods and the node go anywhere",
        NODE_PORT_LOCAL,
        [HERE, THERE],
        "node4 30080",
        (BOTH, BOTH_MASQUERADED, LOCAL),
    ),
    (
        "external Local without local endpoints is silent to outsiders only",
        NODE_PORT_LOCAL,
        [THERE],
        "node4 30080",
        (REMOTE, f"{REMOTE} masqueraded", "silence"),
    ),
    (
        "external Local without endpoints anywhere refuses",
        NODE_PORT_LOCAL,
        [],
        "node4 30080",
        ("refused",) * 3,
    ),
    (
        "external Local says nothing about the cluster IP",
        NODE_PORT_LOCAL,
        [THERE],
        "10.96.0.1 80",
        (REMOTE, f"{REMOTE} masqueraded", f"{REMOTE} masqueraded"),
    ),
    (
        "a load balancer's address follows the rules of node ports",
        BALANCED,
        [HERE, THERE],
        "1.2.3.4 80",
        (BOTH_MASQUERADED,) * 3,
    ),
    (
        "a load balancer's address follows external Local",
        BALANCED_LOCAL,
        [HERE, THERE],
        "1.2.3.4 80",
        (BOTH, BOTH_MASQUERADED, LOCAL),
    ),
    (
        "an ingress address in Proxy mode is somebody else's",
        service(type="LoadBalancer", ingress=({"ip": "1.2.3.4", "ipMode": "Proxy"},)),
        [HERE],
        "1.2.3.4 80",
        ("nothing",) * 3,
    ),
    (
        "an external IP follows the rules of node ports",
        service(externalIPs=["80.11.12.10"]),
        [HERE, THERE],
        "80.11.12.10 80",
        (BOTH_MASQUERADED,) * 3,
    ),
    (
        "external Local counts for type ClusterIP with external IPs",
        service(externalIPs=["80.11.12.10"], externalTrafficPolicy="Local"),
        [HERE, THERE],
        "80.11.12.10 80",
        (BOTH, BOTH_MASQUERADED, LOCAL),
    ),
    (
        "external Local does not count for a bare cluster IP with an ingress address",
        service(ingress=({"ip": "1.2.3.4"},), externalTrafficPolicy="Local"),
        [HERE, THERE],
        "1.2.3.4 80",
        (BOTH_MASQUERADED,) * 3,
    ),
    (
        "an address that is cluster IP and external IP is a cluster IP",
        service(externalIPs=["10.96.0.1"]),
        [HERE],
        "10.96.0.1 80",
        (LOCAL, f"{LOCAL} masqueraded", f"{LOCAL} masqueraded"),
    ),
    (
        "draining endpoints serve when no ready one is left",
        service(),
        ["10.0.1.1 here draining", "10.0.2.1 there draining"],
        "10.96.0.1 80",
        (BOTH, BOTH_MASQUERADED, BOTH_MASQUERADED),
    ),
    (
        "draining endpoints rest while a ready one is left",
        service(),
        ["10.0.1.1 here draining", THERE],
        "10.96.0.1 80",
        (REMOTE, f"{REMOTE} masqueraded", f"{REMOTE} masqueraded"),
    ),
    (
        "locally draining endpoints serve though a remote one is ready",
        NODE_PORT_LOCAL,
        ["10.0.1.1 here draining", THERE],
        "node4 30080",
        (REMOTE, f"{REMOTE} masqueraded", LOCAL),
    ),
    (
        "an endpoint that is ready though terminating is like any other",
        service(),
        ["10.0.1.1 here leaving"],
        "10.96.0.1 80",
        (LOCAL, f"{LOCAL} masqueraded", f"{LOCAL} masqueraded"),
    ),
    (
        "zone hints narrow when all ready endpoints have them",
        service(),
        [f"{HERE} zone-a@", f"{THERE} zone-b@"],
        "10.96.0.1 80",
        (LOCAL, f"{LOCAL} masqueraded", f"{LOCAL} masqueraded"),
    ),
    (
        "an endpoint may name several zones",
        service(),
        [f"{HERE} zone-a@ zone-b@", f"{THERE} zone-b@ zone-a@"],
        "10.96.0.1 80",
        (BOTH, BOTH_MASQUERADED, BOTH_MASQUERADED),
    ),
    (
        "zone hints do not narrow when one ready endpoint has none",
        service(),
        [f"{HERE} zone-a@", THERE],
        "10.96.0.1 80",
        (BOTH, BOTH_MASQUERADED, BOTH_MASQUERADED),
    ),
    (
        "zone hints do not narrow when none names our zone",
        service(),
        [f"{HERE} zone-c@", f"{THERE} zone-b@"],
        "10.96.0.1 80",
        (BOTH, BOTH_MASQUERADED, BOTH_MASQUERADED),
    ),
    (
        "unready endpoints neither make nor break hints",
        service(),
        [f"{HERE} zone-a@", f"{THERE} zone-b@", "10.0.3.1 here unready"],
        "10.96.0.1 80",
        (LOCAL, f"{LOCAL} masqueraded", f"{LOCAL} masqueraded"),
    ),
    (
        "node hints go before zone hints",
        service(),
        [f"{HERE} zone-b@ here#", f"{THERE} zone-a@ there#"],
        "10.96.0.1 80",
        (LOCAL, f"{LOCAL} masqueraded", f"{LOCAL} masqueraded"),
    ),
    (
        "node hints that name other nodes leave it to the zones",
        service(),
        [f"{HERE} zone-b@ else#", f"{THERE} zone-a@ there#"],
        "10.96.0.1 80",
        (REMOTE, f"{REMOTE} masqueraded", f"{REMOTE} masqueraded"),
    ),
    (
        "hints narrow outside traffic, and never the local set",
        NODE_PORT_LOCAL,
        [f"{HERE} zone-b@", f"{THERE} zone-a@"],
        "node4 30080",
        (REMOTE, f"{REMOTE} masqueraded", LOCAL),
    ),
]


@pytest.mark.parametrize(
    ("thing", "endpoints", "where", "expected"),
    [pytest.param(*case, id=sentence) for sentence, *case in POLICIES],
)
def test_what_clients_meet(
    thing: Service, endpoints: list[str], where: str, expected: tuple[str, str, str]
) -> None:
    """A pod, the node itself and anyone else each meet what the rules say."""
    rows = desired(thing, [endpoint_slice(*endpoints)], NODE, CONFIG)
    assert answers(rows, where) == expected


# sentence, Service, settings, frontend, what a pod / this node / others meet
SETTINGS = [
    (
        "without a detector a cluster IP masquerades nobody",
        service(),
        NO_DETECTOR,
        "10.96.0.1 80",
        (BOTH,) * 3,
    ),
    (
        "masquerade-all masquerades even pods at a cluster IP",
        service(),
        ServiceConfig(masquerade_all=True),
        "10.96.0.1 80",
        (BOTH_MASQUERADED,) * 3,
    ),
    (
        "masquerade-all needs no detector",
        service(),
        replace(NO_DETECTOR, masquerade_all=True),
        "10.96.0.1 80",
        (BOTH_MASQUERADED,) * 3,
    ),
    (
        "masquerade-all says nothing about outside traffic",
        NODE_PORT_LOCAL,
        ServiceConfig(masquerade_all=True),
        "node4 30080",
        (BOTH, BOTH_MASQUERADED, LOCAL),
    ),
    (
        "without a detector external Local takes pods for outsiders",
        NODE_PORT_LOCAL,
        NO_DETECTOR,
        "node4 30080",
        (LOCAL, BOTH_MASQUERADED, LOCAL),
    ),
    (
        "external IPs can be switched off",
        service(externalIPs=["80.11.12.10"]),
        ServiceConfig(allow_external_ips=False),
        "80.11.12.10 80",
        ("nothing",) * 3,
    ),
]


@pytest.mark.parametrize(
    ("thing", "config", "where", "expected"),
    [pytest.param(*case, id=sentence) for sentence, *case in SETTINGS],
)
def test_settings(
    thing: Service, config: ServiceConfig, where: str, expected: tuple[str, str, str]
) -> None:
    """Settings change what clients meet."""
    assert answers(desired(thing, [endpoint_slice(HERE, THERE)], NODE, config), where) == expected


@pytest.mark.parametrize(
    ("thing", "expected"),
    [
        pytest.param(service(clusterIP="None"), [], id="headless"),
        pytest.param(service(clusterIP=""), [], id="not yet allocated"),
        pytest.param(service(type="ExternalName"), [], id="ExternalName with a stale cluster IP"),
        pytest.param(
            service(labels={"service.kubernetes.io/service-proxy-name": ""}),
            [],
            id="another proxy's, by a label with an empty value",
        ),
        pytest.param(
            service(
                clusterIPs=["10.96.0.1", "fd00::1"],
                ipFamilies=["IPv4", "IPv6"],
                externalIPs=["80.1.1.1", "2001:db8::7", "300.1.1.1"],
                ports=[HTTP | {"nodePort": 30080}],
            ),
            [
                *("10.96.0.1 80", "80.1.1.1 80", "node4 30080"),
                *("fd00::1 80", "2001:db8::7 80", "node6 30080"),
            ],
            id="both families, each with its own addresses",
        ),
        pytest.param(
            service(externalIPs=["2001:db8::7"], ports=[HTTP | {"nodePort": 30080}]),
            ["10.96.0.1 80", "node4 30080"],
            id="a family without a cluster IP gets nothing at all",
        ),
        pytest.param(
            service(clusterIP="010.096.000.001"), ["10.96.0.1 80"], id="leading zeros are decimal"
        ),
        pytest.param(
            service(
                ports=[
                    {"name": "dns", "port": 53, "protocol": "UDP"},
                    {"name": "dns-tcp", "port": 53},
                ]
            ),
            ["10.96.0.1 53", "10.96.0.1 53"],
            id="one number serves several protocols",
        ),
        pytest.param(
            service(
                ports=[
                    HTTP | {"nodePort": 30080},
                    {"name": "again", "port": 81, "nodePort": 30080},
                ]
            ),
            ["10.96.0.1 80", "node4 30080", "10.96.0.1 81"],
            id="a frontend named twice belongs to the first",
        ),
    ],
)
def test_where_a_service_answers(thing: Service, expected: list[str]) -> None:
    """A Service answers on exactly these frontends."""
    rows = desired(thing, [], NODE, CONFIG)
    assert [frontend_words(one) for port in rows.values() for one in port.frontends] == expected


@pytest.mark.parametrize(
    ("slices", "expected"),
    [
        pytest.param(
            [endpoint_slice("10.0.0.9 -"), endpoint_slice("10.0.0.10 -", name="web-2")],
            "to 10.0.0.10:8080 10.0.0.9:8080",
            id="slices are united and sorted by their text",
        ),
        pytest.param(
            [
                endpoint_slice("10.0.0.1 -"),
                endpoint_slice("10.0.0.1 -", name="web-2", ports=({"name": "http", "port": 9090},)),
            ],
            "to 10.0.0.1:8080 10.0.0.1:9090",
            id="slices may give one port name different numbers",
        ),
        pytest.param(
            [
                endpoint_slice("10.0.0.1 - dead"),
                endpoint_slice("10.0.0.1 -", name="web-2"),
                endpoint_slice("10.0.0.1 - dead", name="web-3"),
            ],
            "to 10.0.0.1:8080",
            id="of two records of an endpoint the one that stays counts",
        ),
        pytest.param(
            [endpoint_slice("10.0.0.1 -", ports=({"name": "other", "port": 8080},))],
            "refused",
            id="another port name is another port",
        ),
        pytest.param(
            [
                endpoint_slice(
                    "10.0.0.1 -", ports=({"name": "http", "port": 8080, "protocol": "UDP"},)
                )
            ],
            "refused",
            id="another protocol is another port",
        ),
        pytest.param(
            [endpoint_slice("10.0.0.1 -", ports=({"port": 8080},))],
            "refused",
            id="a slice port without a name is ignored",
        ),
        pytest.param(
            [endpoint_slice("10.0.0.1 -", ports=({"name": "http"},))],
            "refused",
            id="a slice port without a number is ignored",
        ),
        pytest.param(
            [endpoint_slice("10.0.0.1 -", labels={"service.kubernetes.io/headless": ""})],
            "refused",
            id="a slice with the headless label is ignored",
        ),
        pytest.param(
            [endpoint_slice("fd00::1 -")], "refused", id="a slice of the other family is ignored"
        ),
    ],
)
def test_which_endpoints_belong(slices: list[EndpointSlice], expected: str) -> None:
    """The slices give these endpoints to port http of the Service."""
    assert answers(desired(service(), slices, NODE, CONFIG), "10.96.0.1 80")[0] == expected


def test_a_node_without_zone_ignores_zone_hints() -> None:
    slices = [endpoint_slice(f"{HERE} zone-a@", f"{THERE} @")]
    rows = desired(service(), slices, NodeContext("here"), CONFIG)
    assert answers(rows, "10.96.0.1 80")[0] == BOTH


def test_equal_sets_share_their_slots() -> None:
    """With only local endpoints C and L are the same; no slot is written twice."""
    rows = desired(NODE_PORT_LOCAL, [endpoint_slice(HERE)], NODE, CONFIG)
    assert [len(port.backends) for port in rows.values()] == [1]


def test_an_endpoint_may_stand_in_both_sets() -> None:
    rows = desired(NODE_PORT_LOCAL, [endpoint_slice(HERE, THERE)], NODE, CONFIG)
    assert [len(port.backends) for port in rows.values()] == [3]


def test_a_service_that_is_gone_wants_nothing() -> None:
    assert desired(None, [endpoint_slice(HERE)], NODE, CONFIG) == {}
