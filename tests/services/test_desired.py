"""The rules of Kubernetes, one sentence each: frontends of a Service, and their endpoints."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import permutations

import pytest

from bpfsvc.model import EndpointSlice, Service
from bpfsvc.services.rules.context import NodeContext
from bpfsvc.services.rules.view import evaluate
from tests.services.objects import (
    CONFIG,
    HTTP,
    NODE,
    answers,
    endpoint_slice,
    frontend_text,
    service,
)

HERE, THERE = "10.0.1.1 here", "10.0.2.1 there"
NODE_PORT_LOCAL = service(
    type="NodePort", ports=[HTTP | {"nodePort": 30080}], externalTrafficPolicy="Local"
)

BOTH = "to 10.0.1.1:8080 10.0.2.1:8080"
LOCAL = "to 10.0.1.1:8080"
REMOTE = "to 10.0.2.1:8080"


@pytest.mark.parametrize(
    ("thing", "expected"),
    [
        pytest.param(service(clusterIP="None"), [], id="headless"),
        pytest.param(service(clusterIP=""), [], id="not yet allocated"),
        pytest.param(service(type="ExternalName"), [], id="ExternalName with a stale cluster IP"),
        pytest.param(
            service(labels={"service.kubernetes.io/service-proxy-name": ""}),
            [],
            id="a Service of another proxy, by a label with an empty value",
        ),
        pytest.param(
            service(
                clusterIPs=["10.96.0.1", "fd00::1"],
                ipFamilies=["IPv4", "IPv6"],
                externalIPs=["80.1.1.1", "2001:db8::7", "300.1.1.1"],
                ports=[HTTP | {"nodePort": 30080}],
            ),
            [
                *("10.96.0.1 80", "80.1.1.1 80", "node4 30080", "10.96.0.1 rest"),
                *("fd00::1 80", "2001:db8::7 80", "node6 30080", "fd00::1 rest"),
            ],
            id="both families, each with its own addresses",
        ),
        pytest.param(
            service(externalIPs=["2001:db8::7"], ports=[HTTP | {"nodePort": 30080}]),
            ["10.96.0.1 80", "node4 30080", "10.96.0.1 rest"],
            id="a family without a cluster IP gets nothing at all",
        ),
        pytest.param(
            service(clusterIP="010.096.000.001"),
            ["10.96.0.1 80", "10.96.0.1 rest"],
            id="leading zeros are decimal",
        ),
        pytest.param(
            service(
                ports=[
                    {"name": "dns", "port": 53, "protocol": "UDP"},
                    {"name": "dns-tcp", "port": 53},
                ]
            ),
            ["10.96.0.1 53", "10.96.0.1 rest", "10.96.0.1 53"],
            id="one number serves several protocols",
        ),
        pytest.param(
            service(
                ports=[
                    HTTP | {"nodePort": 30080},
                    {"name": "again", "port": 81, "nodePort": 30080},
                ]
            ),
            ["10.96.0.1 80", "node4 30080", "10.96.0.1 rest", "10.96.0.1 81"],
            id="a frontend of two ports belongs to the first",
        ),
    ],
)
def test_where_a_service_answers(thing: Service, expected: list[str]) -> None:
    """A Service has exactly these frontends."""
    entries = evaluate(thing, [], NODE, CONFIG).entries
    assert [frontend_text(one) for port in entries.values() for one in port.frontends] == expected


@pytest.mark.parametrize(
    ("slices", "expected"),
    [
        pytest.param(
            [endpoint_slice("10.0.0.9 -"), endpoint_slice("10.0.0.10 -", name="web-2")],
            "to 10.0.0.10:8080 10.0.0.9:8080",
            id="endpoints of all slices are merged and sorted by their text",
        ),
        pytest.param(
            [
                endpoint_slice("10.0.0.1 -"),
                endpoint_slice("10.0.0.1 -", name="web-2", ports=({"name": "http", "port": 9090},)),
            ],
            "to 10.0.0.1:8080 10.0.0.1:9090",
            id="slices may have different numbers for one port name",
        ),
        pytest.param(
            [
                endpoint_slice("10.0.0.1 - dead"),
                endpoint_slice("10.0.0.1 -", name="web-2"),
                endpoint_slice("10.0.0.1 - dead", name="web-3"),
            ],
            "to 10.0.0.1:8080",
            id="of two records of one endpoint the one that is not terminating counts",
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
            id="a slice port without a name is not that of a port with a name",
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
    """Port http of the Service has these endpoints of the slices."""
    assert answers(evaluate(service(), slices, NODE, CONFIG).entries, "10.96.0.1 80")[0] == expected


@pytest.mark.parametrize("name", [{}, {"name": None}, {"name": ""}])
def test_a_slice_port_without_a_name_is_that_of_a_service_port_without_a_name(
    name: Mapping[str, object],
) -> None:
    """The API server fills in an empty name; nobody does in a directory of manifests."""
    unnamed = service(ports=[{"port": 80}])
    slices = [endpoint_slice("10.0.0.1 -", ports=({**name, "port": 8080},))]
    entries = evaluate(unnamed, slices, NODE, CONFIG).entries
    assert answers(entries, "10.96.0.1 80")[0] == "to 10.0.0.1:8080"


@pytest.mark.parametrize(
    ("better", "worse", "expected"),
    [
        ("", "unready", "to 10.0.0.1:8080"),
        ("", "dead", "to 10.0.0.1:8080"),
        ("", "draining", "to 10.0.0.1:8080"),
        ("leaving", "unready", "to 10.0.0.1:8080"),
        ("draining", "dead", "to 10.0.0.1:8080"),
        # It is about to be ready, or has a readiness probe that fails: no endpoint is left.
        ("unready", "draining", "refused"),
    ],
)
def test_of_two_records_of_an_endpoint_the_better_counts_in_every_order(
    better: str, worse: str, expected: str
) -> None:
    """Slices contradict each other for a moment while an endpoint moves between them."""
    for states in permutations((better, worse, worse)):
        slices = [
            endpoint_slice(f"10.0.0.1 - {state}", name=f"web-{number}")
            for number, state in enumerate(states)
        ]
        entries = evaluate(service(), slices, NODE, CONFIG).entries
        assert answers(entries, "10.96.0.1 80")[0] == expected, states


@pytest.mark.parametrize(("first", "last"), [("here", "there"), ("there", "here")])
def test_of_two_equal_records_of_an_endpoint_the_last_slice_by_name_counts_in_every_order(
    first: str, last: str
) -> None:
    """All nodes then find the endpoint on the same node."""
    named = [
        endpoint_slice(f"10.0.0.1 {node}", name=name)
        for name, node in (("web-1", first), ("web-2", last))
    ]
    local = service(internalTrafficPolicy="Local")
    for slices in permutations(named):
        pod, *_ = answers(evaluate(local, slices, NODE, CONFIG).entries, "10.96.0.1 80")
        assert pod == ("to 10.0.0.1:8080" if last == "here" else "silence")


# sentence, endpoints, the backends of every client at the cluster IP
PICKED = [
    (
        "an endpoint that is ready and terminating counts as ready",
        ["10.0.1.1 here leaving"],
        LOCAL,
    ),
    (
        "zone hints narrow when all ready endpoints have them",
        [f"{HERE} zone-a@", f"{THERE} zone-b@"],
        LOCAL,
    ),
    (
        "an endpoint may name several zones",
        [f"{HERE} zone-a@ zone-b@", f"{THERE} zone-b@ zone-a@"],
        BOTH,
    ),
    ("zone hints do not narrow when one ready endpoint has none", [f"{HERE} zone-a@", THERE], BOTH),
    (
        "zone hints do not narrow when none names our zone",
        [f"{HERE} zone-c@", f"{THERE} zone-b@"],
        BOTH,
    ),
    (
        "hints of unready endpoints do not matter",
        [f"{HERE} zone-a@", f"{THERE} zone-b@", "10.0.3.1 here unready"],
        LOCAL,
    ),
    (
        "node hints are preferred to zone hints",
        [f"{HERE} zone-b@ here#", f"{THERE} zone-a@ there#"],
        LOCAL,
    ),
    (
        "zone hints count if the node hints name other nodes only",
        [f"{HERE} zone-b@ else#", f"{THERE} zone-a@ there#"],
        REMOTE,
    ),
]


@pytest.mark.parametrize(
    ("endpoints", "expected"),
    [pytest.param(*case, id=sentence) for sentence, *case in PICKED],
)
def test_which_endpoints_are_picked(endpoints: list[str], expected: str) -> None:
    """Conditions and topology select endpoints, in the same way for all clients."""
    entries = evaluate(service(), [endpoint_slice(*endpoints)], NODE, CONFIG).entries
    masqueraded = f"{expected} masqueraded"
    assert answers(entries, "10.96.0.1 80") == (expected, masqueraded, masqueraded)


def test_a_node_without_zone_ignores_zone_hints() -> None:
    slices = [endpoint_slice(f"{HERE} zone-a@", f"{THERE} @")]
    entries = evaluate(service(), slices, NodeContext("here"), CONFIG).entries
    assert answers(entries, "10.96.0.1 80")[0] == BOTH


def test_equal_sets_share_their_slots() -> None:
    """With local endpoints only, the cluster set and the local set are one set of slots."""
    entries = evaluate(NODE_PORT_LOCAL, [endpoint_slice(HERE)], NODE, CONFIG).entries
    assert [len(port.backends) for port in entries.values()] == [1]


def test_an_endpoint_may_be_in_both_sets() -> None:
    entries = evaluate(NODE_PORT_LOCAL, [endpoint_slice(HERE, THERE)], NODE, CONFIG).entries
    assert [len(port.backends) for port in entries.values()] == [3]


def test_a_deleted_service_has_no_entries() -> None:
    assert evaluate(None, [endpoint_slice(HERE)], NODE, CONFIG).entries == {}
