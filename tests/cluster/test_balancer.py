"""Which Services the load balancer serves, with which addresses, through which nodes."""

from __future__ import annotations

from typing import Any

import pytest

from tests.cluster.addresses import NODES
from tests.cluster.balancer import Pool, hops, is_served


def service(uid: str = "1", **spec: Any) -> dict[str, Any]:
    defaults = {"type": "LoadBalancer", "ipFamilies": ["IPv4"]}
    return {"metadata": {"uid": uid}, "spec": defaults | spec, "status": {}}


def texts(pool: Pool, item: dict[str, Any]) -> list[str]:
    return [str(address) for address in pool.of(item)]


def test_a_service_of_the_type_is_served() -> None:
    assert is_served(service())


@pytest.mark.parametrize("spec", [{"type": "NodePort"}, {"loadBalancerClass": "example/other"}])
def test_other_services_are_not(spec: dict[str, str]) -> None:
    assert not is_served(service(**spec))


def test_a_service_that_is_deleted_is_not_served() -> None:
    item = service()
    item["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z"
    assert not is_served(item)


def test_a_service_has_an_address_of_each_family_and_keeps_them() -> None:
    pool, item = Pool(), service(ipFamilies=["IPv6", "IPv4"])
    assert texts(pool, item) == texts(pool, item) == ["2001:db8:203::1", "203.0.113.1"]


def test_two_services_have_different_addresses() -> None:
    pool = Pool()
    assert texts(pool, service("1")) != texts(pool, service("2"))


def test_a_wish_is_granted_once() -> None:
    pool = Pool()
    assert texts(pool, service("1", loadBalancerIP="203.0.113.9")) == ["203.0.113.9"]
    assert texts(pool, service("2", loadBalancerIP="203.0.113.9")) == ["203.0.113.1"]


def test_an_address_of_an_earlier_run_is_kept() -> None:
    item = service()
    item["status"] = {"loadBalancer": {"ingress": [{"ip": "203.0.113.77"}]}}
    assert texts(Pool(), item) == ["203.0.113.77"]


def test_a_freed_address_is_not_used_at_once() -> None:
    pool = Pool()
    (first,) = pool.of(service("1"))
    assert pool.free({"2"}) == [first]
    assert pool.of(service("2")) != [first]


def test_a_client_with_affinity_meets_one_node() -> None:
    nodes = list(NODES)
    assert hops(service(), nodes) == nodes
    assert hops(service(sessionAffinity="ClientIP"), nodes) == nodes[:1]
    assert hops(service(sessionAffinity="ClientIP"), []) == []
