"""The rules of Kubernetes, one sentence each: what each class of clients gets at a Service."""

from __future__ import annotations

from dataclasses import replace

import pytest

from bpfsvc.model import Service
from bpfsvc.services.rules.context import ServiceConfig
from bpfsvc.services.rules.view import evaluate
from tests.services.objects import CONFIG, HTTP, NODE, answers, endpoint_slice, service

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

# sentence, Service, endpoints, frontend, what a pod / this node / other clients get
POLICIES = [
    (
        "a cluster IP keeps a pod's address and masquerades external clients",
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
        "endpoints that are all unready or dead do not count",
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
        "internal Local drops when all endpoints are on other nodes",
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
        "internal Local does not affect node ports",
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
        "a node port masquerades all clients, pods too",
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
        "external Local keeps external clients' addresses; pods and the node get all endpoints",
        NODE_PORT_LOCAL,
        [HERE, THERE],
        "node4 30080",
        (BOTH, BOTH_MASQUERADED, LOCAL),
    ),
    (
        "external Local without local endpoints drops external clients only",
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
        "external Local does not affect the cluster IP",
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
        "an ingress address in Proxy mode is not ours",
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
        "external Local does not count for type ClusterIP with an ingress address",
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
        "draining endpoints do not serve while a ready one is left",
        service(),
        ["10.0.1.1 here draining", THERE],
        "10.96.0.1 80",
        (REMOTE, f"{REMOTE} masqueraded", f"{REMOTE} masqueraded"),
    ),
    (
        "local draining endpoints serve even if a remote one is ready",
        NODE_PORT_LOCAL,
        ["10.0.1.1 here draining", THERE],
        "node4 30080",
        (REMOTE, f"{REMOTE} masqueraded", LOCAL),
    ),
    (
        "hints narrow external traffic, but never the local set",
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
def test_what_clients_get(
    thing: Service, endpoints: list[str], where: str, expected: tuple[str, str, str]
) -> None:
    """A pod, the node itself and other clients each get what the rules say."""
    entries = evaluate(thing, [endpoint_slice(*endpoints)], NODE, CONFIG).entries
    assert answers(entries, where) == expected


# sentence, Service, settings, frontend, what a pod / this node / other clients get
SETTINGS = [
    (
        "without a detector a cluster IP masquerades no client",
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
        "masquerade-all needs no local detector",
        service(),
        replace(NO_DETECTOR, masquerade_all=True),
        "10.96.0.1 80",
        (BOTH_MASQUERADED,) * 3,
    ),
    (
        "masquerade-all does not affect external traffic",
        NODE_PORT_LOCAL,
        ServiceConfig(masquerade_all=True),
        "node4 30080",
        (BOTH, BOTH_MASQUERADED, LOCAL),
    ),
    (
        "without a local detector external Local handles pods as external clients",
        NODE_PORT_LOCAL,
        NO_DETECTOR,
        "node4 30080",
        (LOCAL, BOTH_MASQUERADED, LOCAL),
    ),
    (
        "external IPs can be turned off",
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
    """Settings change what clients get."""
    entries = evaluate(thing, [endpoint_slice(HERE, THERE)], NODE, config).entries
    assert answers(entries, where) == expected
