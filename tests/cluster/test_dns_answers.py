"""Names and objects in, the answers of the cluster's DNS out."""

from __future__ import annotations

from typing import Any

import pytest
from dnslib import QTYPE, RCODE, DNSRecord

from tests.cluster.dns_answers import Zone

SERVICES: dict[tuple[str, str], dict[str, Any]] = {
    ("prod", "shop"): {
        "type": "ClusterIP",
        "clusterIP": "10.96.0.7",
        "clusterIPs": ["10.96.0.7", "fd00::7"],
    },
    ("prod", "db"): {"type": "ClusterIP", "clusterIP": "None", "clusterIPs": ["None"]},
    ("prod", "eager"): {"clusterIP": "None", "publishNotReadyAddresses": True},
    ("prod", "alias"): {"type": "ExternalName", "externalName": "shop.prod.svc.cluster.local"},
    ("prod", "abroad"): {"type": "ExternalName", "externalName": "shop.example"},
    ("prod", "loop"): {"type": "ExternalName", "externalName": "loop.prod.svc.cluster.local"},
}
ENDPOINTS = [
    {"addresses": ["10.244.1.1"], "hostname": "db-0", "conditions": {"ready": True}},
    {"addresses": ["10.244.1.2"], "hostname": "db-1", "conditions": {"ready": False}},
    {"addresses": ["fd44::3"], "hostname": "db-2", "conditions": {}},
]


def service(namespace: str, name: str) -> dict[str, Any] | None:
    spec = SERVICES.get((namespace, name))
    return None if spec is None else {"spec": spec}


ZONE = Zone(service, lambda *_: [{"endpoints": ENDPOINTS}, {"endpoints": None}])


def answers(name: str, kind: str = "A") -> list[str]:
    """Return the answers, in the order given, each with its kind."""
    reply = ZONE.reply(DNSRecord.question(name, kind))
    assert reply.header.rcode == RCODE.NOERROR
    return [f"{QTYPE[record.rtype]} {record.rdata}" for record in reply.rr]


def test_a_service_has_its_cluster_ips_by_family() -> None:
    assert answers("shop.prod.svc.cluster.local") == ["A 10.96.0.7"]
    assert answers("shop.prod.svc.cluster.local", "AAAA") == ["AAAA fd00::7"]


def test_the_case_of_names_does_not_matter() -> None:
    assert answers("Shop.PROD.svc.Cluster.Local.") == ["A 10.96.0.7"]


def test_a_kind_that_a_name_does_not_have_is_an_empty_answer() -> None:
    assert answers("shop.prod.svc.cluster.local", "TXT") == []


def test_a_headless_service_has_its_ready_endpoints() -> None:
    assert answers("db.prod.svc.cluster.local") == ["A 10.244.1.1"]
    assert answers("db.prod.svc.cluster.local", "AAAA") == ["AAAA fd44::3"]


def test_unready_endpoints_are_published_on_request() -> None:
    assert answers("eager.prod.svc.cluster.local") == ["A 10.244.1.1", "A 10.244.1.2"]


def test_an_endpoint_of_a_headless_service_has_a_name() -> None:
    assert answers("db-0.db.prod.svc.cluster.local") == ["A 10.244.1.1"]


def test_an_external_name_is_followed_within_the_cluster_and_no_further() -> None:
    target = "CNAME shop.prod.svc.cluster.local."
    assert answers("alias.prod.svc.cluster.local") == [target, "A 10.96.0.7"]
    assert answers("abroad.prod.svc.cluster.local") == ["CNAME shop.example."]


def test_an_external_name_of_itself_ends() -> None:
    assert set(answers("loop.prod.svc.cluster.local")) == {"CNAME loop.prod.svc.cluster.local."}


@pytest.mark.parametrize(
    "name",
    [
        pytest.param("example.com", id="another domain"),
        pytest.param("shop.prod.svc.cluster.local.cluster.local", id="a search path too many"),
        pytest.param("cluster.local", id="the domain itself"),
        pytest.param("prod.svc.cluster.local", id="a namespace"),
        pytest.param("none.prod.svc.cluster.local", id="no such Service"),
        pytest.param("db-0.shop.prod.svc.cluster.local", id="a host of a Service with an address"),
        pytest.param("db-9.db.prod.svc.cluster.local", id="no such host"),
        pytest.param("db-1.db.prod.svc.cluster.local", id="a host that is not ready"),
        pytest.param("a.db-0.db.prod.svc.cluster.local", id="a name below a host"),
    ],
)
def test_there_is_no_such_name(name: str) -> None:
    reply = ZONE.reply(DNSRecord.question(name, "A"))
    assert (reply.header.rcode, reply.rr) == (RCODE.NXDOMAIN, [])
