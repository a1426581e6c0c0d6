"""Frontends that several Services name."""

from __future__ import annotations

from itertools import permutations

import pytest

from bpfsvc.model import Service
from bpfsvc.services.entries import ServiceEntries
from bpfsvc.services.rules.desired import frontends, service_ports
from bpfsvc.services.rules.frontend_ownership import FrontendOwnership
from bpfsvc.services.rules.view import evaluate
from tests.services.objects import CONFIG, NODE, frontend, service

SHARED = frontend("80.0.0.1 80")


def claimant(name: str, *, shared: bool = True, created: str = "") -> Service:
    return service(
        name,
        created=created,
        clusterIP=f"10.96.0.{ord(name)}",
        externalIPs=["80.0.0.1"] if shared else [],
    )


def entries(name: str) -> ServiceEntries:
    return evaluate(claimant(name), [], NODE, CONFIG).entries


def update(ownership: FrontendOwnership, thing: Service) -> set[str]:
    """Update the claims of a Service; return the names of the other Services that it affects."""
    wanted = frontends(service_ports(thing, CONFIG))
    changed = ownership.update(
        (thing.namespace, thing.name), wanted, thing.cluster_ips, created=thing.created
    )
    return {name for _, name in changed}


def remove(ownership: FrontendOwnership, name: str) -> set[str]:
    """Delete a Service; return the names of the others that changed by it."""
    return {other for _, other in ownership.update(("default", name), (), ())}


def winners(ownership: FrontendOwnership, *names: str) -> list[str]:
    return [
        name
        for name in names
        for port in ownership.owned(("default", name), entries(name)).values()
        if SHARED in port.frontends
    ]


OLD, NEW = "2026-11-21T10:39:20Z", "2026-11-21T10:39:21Z"


@pytest.mark.parametrize("order", list(permutations("abc")), ids="".join)
def test_the_oldest_wins_in_any_order_of_events(order: tuple[str, ...]) -> None:
    ages = {"a": NEW, "b": OLD, "c": ""}
    ownership = FrontendOwnership()
    for name in order:
        update(ownership, claimant(name, created=ages[name]))
    assert winners(ownership, *order) == ["b"]
    assert ownership.lost() == {SHARED: (("default", "b"), (("default", "a"), ("default", "c")))}
    assert ownership.why(SHARED, ("default", "a")) == "that Service is older"
    assert remove(ownership, "b") == {"a"}
    assert winners(ownership, "a", "c") == ["a"]


def test_of_two_services_of_one_age_the_first_by_name_wins_and_it_is_said_so() -> None:
    ownership = FrontendOwnership()
    for name in "ba":
        update(ownership, claimant(name, created=OLD))
    assert winners(ownership, "a", "b") == ["a"]
    assert ownership.why(SHARED, ("default", "b")) == "that Service sorts first"


def test_a_service_that_is_deleted_and_made_again_is_younger() -> None:
    ownership = FrontendOwnership()
    update(ownership, claimant("a", created=OLD))
    update(ownership, claimant("b", created=NEW))
    assert update(ownership, claimant("a", created="2026-11-22T00:00:00Z")) == {"b"}
    assert winners(ownership, "a", "b") == ["b"]


def test_a_cluster_ip_belongs_to_its_service_if_older_ones_claim_it() -> None:
    ownership = FrontendOwnership()
    before = service("old", created=OLD, clusterIP="10.96.0.99", externalIPs=["10.96.0.1"])
    update(ownership, before)
    update(ownership, service("main", created=NEW))
    assert ownership.owner(CLUSTER_IP) == ("default", "main")
    assert ownership.why(CLUSTER_IP, ("default", "old")) == "it is the cluster IP of that Service"


@pytest.mark.parametrize("order", list(permutations("abc")), ids="".join)
def test_the_first_by_name_wins_if_all_are_of_one_age(order: tuple[str, ...]) -> None:
    ownership = FrontendOwnership()
    for name in order:
        update(ownership, claimant(name))
    assert winners(ownership, *order) == ["a"]
    assert ownership.lost() == {SHARED: (("default", "a"), (("default", "b"), ("default", "c")))}


def test_the_next_service_takes_over_when_the_owner_is_removed() -> None:
    ownership = FrontendOwnership()
    for name in "abc":
        update(ownership, claimant(name))
    assert remove(ownership, "a") == {"b"}
    assert winners(ownership, "b", "c") == ["b"]
    assert update(ownership, claimant("b", shared=False)) == {"c"}
    assert ownership.lost() == {}


def test_a_new_service_replaces_an_owner_that_sorts_after_it() -> None:
    ownership = FrontendOwnership()
    assert update(ownership, claimant("b")) == set()
    assert update(ownership, claimant("a")) == {"b"}
    assert winners(ownership, "a", "b") == ["a"]


def test_removing_a_service_that_owns_nothing_affects_no_other() -> None:
    ownership = FrontendOwnership()
    for name in "ab":
        update(ownership, claimant(name))
    assert remove(ownership, "b") == set()
    assert ownership.lost() == {}


def test_a_service_that_lost_a_frontend_keeps_its_others() -> None:
    ownership = FrontendOwnership()
    for name in "ab":
        update(ownership, claimant(name))
    (left,) = ownership.owned(("default", "b"), entries("b")).values()
    address = f"10.96.0.{ord('b')}"
    assert list(left.frontends) == [frontend(f"{address} 80"), frontend(f"{address} rest")]


def outside(kind: str, name: str, address: str) -> Service:
    """Return a Service that claims an address other than by its cluster IP."""
    if kind == "external IP":
        return service(name, clusterIP="10.96.0.99", externalIPs=[address])
    return service(name, clusterIP="10.96.0.99", ingress=({"ip": address},))


CLUSTER_IP = frontend("10.96.0.1 80")
"""The cluster IP of ``main``; ``before`` sorts before it, ``other`` after."""


@pytest.mark.parametrize("kind", ["external IP", "load balancer"])
@pytest.mark.parametrize("claimant_name", ["before", "other"])
def test_a_cluster_ip_belongs_to_its_service_if_others_claim_it(
    kind: str, claimant_name: str
) -> None:
    main, other = service("main"), outside(kind, claimant_name, "10.96.0.1")
    for order in permutations((main, other)):
        ownership = FrontendOwnership()
        for thing in order:
            update(ownership, thing)
        assert ownership.owner(CLUSTER_IP) == ("default", "main")
        assert ownership.lost() == {
            CLUSTER_IP: (("default", "main"), (("default", claimant_name),))
        }


def test_a_later_cluster_ip_takes_over_and_returns_the_frontend_when_it_is_removed() -> None:
    ownership = FrontendOwnership()
    update(ownership, outside("external IP", "before", "10.96.0.1"))
    assert ownership.owner(CLUSTER_IP) == ("default", "before")
    assert update(ownership, service("main")) == {"before"}
    assert ownership.owner(CLUSTER_IP) == ("default", "main")
    assert remove(ownership, "main") == {"before"}
    assert ownership.owner(CLUSTER_IP) == ("default", "before")
    assert ownership.lost() == {}


def test_of_two_services_with_one_cluster_ip_the_first_by_name_wins() -> None:
    for order in permutations("abc"):
        ownership = FrontendOwnership()
        update(ownership, outside("external IP", "0", "10.96.0.1"))
        for name in order:
            update(ownership, service(name))
        assert ownership.owner(CLUSTER_IP) == ("default", "a")


def test_a_service_whose_cluster_ip_becomes_an_external_ip_loses_the_frontend() -> None:
    """It claims the same address as before, but no longer as its cluster IP."""
    ownership = FrontendOwnership()
    update(ownership, service("a", clusterIP="10.96.0.1", externalIPs=["10.96.0.2"]))
    update(ownership, service("b", clusterIP="10.96.0.1"))
    assert ownership.owner(CLUSTER_IP) == ("default", "a")
    changed = service("a", clusterIP="10.96.0.2", externalIPs=["10.96.0.1"])
    assert update(ownership, changed) == {"b"}
    assert ownership.owner(CLUSTER_IP) == ("default", "b")
    assert ownership.owner(frontend("10.96.0.2 80")) == ("default", "a")


def test_node_ports_belong_to_the_first_service_by_name() -> None:
    """The frontend of a node port has no address that could be a cluster IP."""
    ports = [{"name": "http", "port": 80, "nodePort": 30080}]
    ownership = FrontendOwnership()
    update(ownership, service("b", clusterIP="10.96.0.2", type="NodePort", ports=ports))
    assert update(ownership, service("a", type="NodePort", ports=ports)) == {"b"}
    assert ownership.owner(frontend("node4 30080")) == ("default", "a")
    assert ownership.owner(frontend("10.96.0.2 80")) == ("default", "b")
