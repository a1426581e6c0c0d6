"""The gauge of service ports with policy Local and no endpoint on this node."""

from __future__ import annotations

import pytest

from bpfsvc.model import EndpointSlice, Service
from bpfsvc.services.rules.no_local_endpoints import NoLocalEndpoints
from bpfsvc.services.rules.view import PortCounts, evaluate
from tests.services.objects import CONFIG, HTTP, NODE, endpoint_slice, service

INTERNAL = {"internalTrafficPolicy": "Local"}
EXTERNAL = {"type": "NodePort", "externalTrafficPolicy": "Local"}

CASES = [
    ("an endpoint on another node only", INTERNAL, ["10.0.0.2 there"], {("internal", 4): 1}),
    ("also an endpoint on this node", INTERNAL, ["10.0.0.1 here", "10.0.0.2 there"], {}),
    ("no endpoints", INTERNAL, [], {}),
    ("no usable endpoint", INTERNAL, ["10.0.0.2 there unready"], {}),
    ("a draining endpoint here", INTERNAL, ["10.0.0.1 here draining", "10.0.0.2 there"], {}),
    ("an unready endpoint on this node", INTERNAL, ["10.0.0.1 here unready", "10.0.0.2 there"], {
        ("internal", 4): 1
    }),
    ("an endpoint without a node", INTERNAL, ["10.0.0.2 -"], {("internal", 4): 1}),
    ("the policy Cluster", {}, ["10.0.0.2 there"], {}),
    ("a NodePort Service", EXTERNAL, ["10.0.0.2 there"], {("external", 4): 1}),
    (
        "a load balancer without an address",
        {**EXTERNAL, "type": "LoadBalancer"},
        ["10.0.0.2 there"],
        {("external", 4): 1},
    ),
    (
        "a policy that has no effect for the type",
        {**EXTERNAL, "type": "ClusterIP"},
        ["10.0.0.2 there"],
        {},
    ),
    (
        "both policies",
        {**INTERNAL, **EXTERNAL},
        ["10.0.0.2 there"],
        {("internal", 4): 1, ("external", 4): 1},
    ),
    ("a Service of another proxy", {**INTERNAL, "labels": {
        "service.kubernetes.io/service-proxy-name": "else"
    }}, ["10.0.0.2 there"], {}),
]  # fmt: skip


def without_local(thing: Service | None, slices: list[EndpointSlice]) -> PortCounts:
    return evaluate(thing, slices, NODE, CONFIG).summary.without_local


@pytest.mark.parametrize(
    ("spec", "endpoints", "expected"), [pytest.param(*case, id=name) for name, *case in CASES]
)
def test_which_service_ports_are_counted(
    spec: dict[str, object], endpoints: list[str], expected: dict[tuple[str, int], int]
) -> None:
    one = service(**spec)  # type: ignore[arg-type]
    assert without_local(one, [endpoint_slice(*endpoints)]) == expected


def test_every_port_and_family_counts() -> None:
    thing = service(
        internalTrafficPolicy="Local",
        clusterIPs=["10.96.0.1", "fd00::1"],
        ipFamilies=["IPv4", "IPv6"],
        ports=[HTTP, {"name": "more", "port": 81}],
    )
    ports = ({"name": "http", "port": 80}, {"name": "more", "port": 81})
    slices = [
        endpoint_slice("10.0.0.2 there", ports=ports),
        endpoint_slice("fd00::2 there", name="web-2", ports=ports[:1]),
    ]
    assert without_local(thing, slices) == {("internal", 4): 2, ("internal", 6): 1}


def test_the_sum_over_all_services_is_kept_up_to_date() -> None:
    sums = NoLocalEndpoints()
    away, here = [endpoint_slice("10.0.0.2 there")], [endpoint_slice("10.0.0.1 here")]
    local = service(internalTrafficPolicy="Local")

    def internal() -> int:
        return sums.counts()["internal", 4]

    assert sums.counts() == dict.fromkeys(
        [("internal", 4), ("internal", 6), ("external", 4), ("external", 6)], 0
    )
    sums.update(("default", "one"), without_local(local, away))
    sums.update(("default", "two"), without_local(local, away))
    sums.update(("default", "two"), without_local(local, away))
    assert internal() == 2
    sums.update(("default", "one"), without_local(local, here))
    assert internal() == 1
    sums.update(("default", "two"), without_local(None, away))
    assert internal() == 0
