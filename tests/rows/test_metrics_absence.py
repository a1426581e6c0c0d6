"""Service ports that keep to endpoints of this node and have none: what a gauge counts."""

from __future__ import annotations

import pytest

from bpfsvc.absence import Absences, absent
from tests.rows.objects import HTTP, NODE, endpoint_slice, service

INTERNAL = {"internalTrafficPolicy": "Local"}
EXTERNAL = {"type": "NodePort", "externalTrafficPolicy": "Local"}

CASES = [
    ("an endpoint elsewhere only", INTERNAL, ["10.0.0.2 there"], {("internal", 4): 1}),
    ("one here as well", INTERNAL, ["10.0.0.1 here", "10.0.0.2 there"], {}),
    ("none at all", INTERNAL, [], {}),
    ("none that is usable", INTERNAL, ["10.0.0.2 there unready"], {}),
    ("a draining one here", INTERNAL, ["10.0.0.1 here draining", "10.0.0.2 there"], {}),
    ("an unready one here", INTERNAL, ["10.0.0.1 here unready", "10.0.0.2 there"], {
        ("internal", 4): 1
    }),
    ("one of no node", INTERNAL, ["10.0.0.2 -"], {("internal", 4): 1}),
    ("the policy Cluster", {}, ["10.0.0.2 there"], {}),
    ("a NodePort Service", EXTERNAL, ["10.0.0.2 there"], {("external", 4): 1}),
    (
        "a load balancer without an address",
        {**EXTERNAL, "type": "LoadBalancer"},
        ["10.0.0.2 there"],
        {("external", 4): 1},
    ),
    (
        "a policy that means nothing for the type",
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
    ("another proxy's", {**INTERNAL, "labels": {
        "service.kubernetes.io/service-proxy-name": "else"
    }}, ["10.0.0.2 there"], {}),
]  # fmt: skip


@pytest.mark.parametrize(
    ("spec", "endpoints", "expected"), [pytest.param(*case, id=name) for name, *case in CASES]
)
def test_who_is_counted(
    spec: dict[str, object], endpoints: list[str], expected: dict[tuple[str, int], int]
) -> None:
    one = service(**spec)  # type: ignore[arg-type]
    assert absent(one, [endpoint_slice(*endpoints)], NODE) == expected


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
    assert absent(thing, slices, NODE) == {("internal", 4): 2, ("internal", 6): 1}


def test_all_services_together_are_kept_up_to_date() -> None:
    absences = Absences()
    away, here = [endpoint_slice("10.0.0.2 there")], [endpoint_slice("10.0.0.1 here")]
    local = service(internalTrafficPolicy="Local")

    def internal() -> int:
        return absences.counts()["internal", 4]

    assert absences.counts() == dict.fromkeys(
        [("internal", 4), ("internal", 6), ("external", 4), ("external", 6)], 0
    )
    absences.update(("default", "one"), local, away, NODE)
    absences.update(("default", "two"), local, away, NODE)
    absences.update(("default", "two"), local, away, NODE)
    assert internal() == 2
    absences.update(("default", "one"), local, here, NODE)
    assert internal() == 1
    absences.update(("default", "two"), None, away, NODE)
    assert internal() == 0
