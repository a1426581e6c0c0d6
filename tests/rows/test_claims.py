"""Frontends that several Services name."""

from __future__ import annotations

from itertools import permutations

import pytest

from bpfsvc.claims import Claims
from bpfsvc.desired import answers_at, desired
from bpfsvc.model import Service
from bpfsvc.rows import ServiceRows
from tests.rows.objects import CONFIG, NODE, frontend, service

SHARED = frontend("80.0.0.1 80")


def claimant(name: str, *, claims: bool = True) -> Service:
    return service(
        name,
        clusterIP=f"10.96.0.{ord(name)}",
        externalIPs=["80.0.0.1"] if claims else [],
    )


def rows(name: str) -> ServiceRows:
    return desired(claimant(name), [], NODE, CONFIG)


def update(claims: Claims, thing: Service) -> set[str]:
    """Note what a Service claims; give the names of the others that changed by it."""
    wanted = answers_at(thing, CONFIG)
    changed = claims.update((thing.namespace, thing.name), wanted, thing.cluster_ips)
    return {name for _, name in changed}


def leave(claims: Claims, name: str) -> set[str]:
    """Let a Service go; give the names of the others that changed by it."""
    return {other for _, other in claims.update(("default", name), (), ())}


def winners(claims: Claims, *names: str) -> list[str]:
    return [
        name
        for name in names
        for port in claims.won(("default", name), rows(name)).values()
        if SHARED in port.frontends
    ]


@pytest.mark.parametrize("order", list(permutations("abc")), ids="".join)
def test_the_first_by_name_wins_in_any_order_of_events(order: tuple[str, ...]) -> None:
    claims = Claims()
    for name in order:
        update(claims, claimant(name))
    assert winners(claims, *order) == ["a"]
    assert claims.lost() == {SHARED: (("default", "a"), (("default", "b"), ("default", "c")))}


def test_the_next_takes_over_when_the_winner_leaves() -> None:
    claims = Claims()
    for name in "abc":
        update(claims, claimant(name))
    assert leave(claims, "a") == {"b"}
    assert winners(claims, "b", "c") == ["b"]
    assert update(claims, claimant("b", claims=False)) == {"c"}
    assert claims.lost() == {}


def test_a_newcomer_displaces_one_who_sorts_after_it() -> None:
    claims = Claims()
    assert update(claims, claimant("b")) == set()
    assert update(claims, claimant("a")) == {"b"}
    assert winners(claims, "a", "b") == ["a"]


def test_who_waits_and_leaves_changes_nothing_for_others() -> None:
    claims = Claims()
    for name in "ab":
        update(claims, claimant(name))
    assert leave(claims, "b") == set()
    assert claims.lost() == {}


def test_a_loser_keeps_its_other_frontends() -> None:
    claims = Claims()
    for name in "ab":
        update(claims, claimant(name))
    (left,) = claims.won(("default", "b"), rows("b")).values()
    home = f"10.96.0.{ord('b')}"
    assert list(left.frontends) == [frontend(f"{home} 80"), frontend(f"{home} rest")]


def outside(kind: str, name: str, address: str) -> Service:
    """Give a Service that claims an address other than by its cluster IP."""
    if kind == "external IP":
        return service(name, clusterIP="10.96.0.99", externalIPs=[address])
    return service(name, clusterIP="10.96.0.99", ingress=({"ip": address},))


HOME = frontend("10.96.0.1 80")
"""The cluster IP of ``home``; ``alien`` sorts before it, ``zealot`` after."""


@pytest.mark.parametrize("kind", ["external IP", "load balancer"])
@pytest.mark.parametrize("rival", ["alien", "zealot"])
def test_a_cluster_ip_is_its_services_whoever_else_names_it(kind: str, rival: str) -> None:
    home, other = service("home"), outside(kind, rival, "10.96.0.1")
    for order in permutations((home, other)):
        claims = Claims()
        for thing in order:
            update(claims, thing)
        assert claims.owner(HOME) == ("default", "home")
        assert claims.lost() == {HOME: (("default", "home"), (("default", rival),))}


def test_a_cluster_ip_that_comes_later_takes_over_and_gives_back_when_it_goes() -> None:
    claims = Claims()
    update(claims, outside("external IP", "alien", "10.96.0.1"))
    assert claims.owner(HOME) == ("default", "alien")
    assert update(claims, service("home")) == {"alien"}
    assert claims.owner(HOME) == ("default", "home")
    assert leave(claims, "home") == {"alien"}
    assert claims.owner(HOME) == ("default", "alien")
    assert claims.lost() == {}


def test_of_two_services_with_one_cluster_ip_the_first_by_name_wins() -> None:
    for order in permutations("abc"):
        claims = Claims()
        update(claims, outside("external IP", "0", "10.96.0.1"))
        for name in order:
            update(claims, service(name))
        assert claims.owner(HOME) == ("default", "a")


def test_a_service_whose_cluster_ip_became_an_external_ip_yields() -> None:
    """What it claims is the same as before; only how is not."""
    claims = Claims()
    update(claims, service("a", clusterIP="10.96.0.1", externalIPs=["10.96.0.2"]))
    update(claims, service("b", clusterIP="10.96.0.1"))
    assert claims.owner(HOME) == ("default", "a")
    turned = service("a", clusterIP="10.96.0.2", externalIPs=["10.96.0.1"])
    assert update(claims, turned) == {"b"}
    assert claims.owner(HOME) == ("default", "b")
    assert claims.owner(frontend("10.96.0.2 80")) == ("default", "a")


def test_node_ports_are_settled_by_name_beside_cluster_ips() -> None:
    """The frontend of a node port has no address that could be a cluster IP."""
    ports = [{"name": "http", "port": 80, "nodePort": 30080}]
    claims = Claims()
    update(claims, service("b", clusterIP="10.96.0.2", type="NodePort", ports=ports))
    assert update(claims, service("a", type="NodePort", ports=ports)) == {"b"}
    assert claims.owner(frontend("node4 30080")) == ("default", "a")
    assert claims.owner(frontend("10.96.0.2 80")) == ("default", "b")
