"""External addresses that no Service is served at, and those that look strange and are."""

from __future__ import annotations

from typing import Any

import pytest

from bpfsvc.base.address import pack
from bpfsvc.model import Service
from bpfsvc.services.entries import Frontend
from bpfsvc.services.rules.desired import frontends, service_ports
from bpfsvc.services.rules.refused_addresses import refusals
from tests.services.objects import CONFIG, service

TCP = 6

REFUSED = {
    "0.0.0.0": "the unspecified address",
    "::": "the unspecified address",
    "::ffff:0.0.0.0": "the unspecified address",
    "127.0.0.1": "a loopback address",
    "127.8.0.1": "a loopback address",
    "::1": "a loopback address",
    "224.0.0.1": "a multicast address",
    "239.1.2.3": "a multicast address",
    "ff02::1": "a multicast address",
    "255.255.255.255": "the broadcast address",
}
SERVED = ("192.168.50.11", "fd50::11", "169.254.7.7", "fe80::7", "203.0.113.7", "10.96.0.200")


def named(address: str, field: str) -> Service:
    """Return a Service of both families with an external address."""
    both: dict[str, Any] = {
        "clusterIP": "10.96.0.1",
        "clusterIPs": ["10.96.0.1", "fd96::1"],
        "ipFamilies": ["IPv4", "IPv6"],
    }
    if field == "spec.externalIPs":
        return service(externalIPs=[address], **both)
    return service(ingress=({"ip": address},), **both)


FIELDS = pytest.mark.parametrize("field", ["spec.externalIPs", "status.loadBalancer.ingress"])


@FIELDS
@pytest.mark.parametrize("address", REFUSED)
def test_a_service_is_not_served_at_addresses_that_mean_something_else(
    address: str, field: str
) -> None:
    thing = named(address, field)
    own = {pack("10.96.0.1"), pack("fd96::1")}
    assert {one.address for one in frontends(service_ports(thing, CONFIG))} == own
    (text,) = refusals(thing)
    assert text.startswith(f"{field} has ")
    assert text.endswith(f"{REFUSED[address]}: not served there")


@FIELDS
@pytest.mark.parametrize("address", SERVED)
def test_addresses_of_nodes_and_links_are_served_as_kube_proxy_does_it(
    address: str, field: str
) -> None:
    thing = named(address, field)
    assert Frontend(pack(address), 80, TCP) in frontends(service_ports(thing, CONFIG))
    assert not list(refusals(thing))


def test_the_other_addresses_of_such_a_service_are_served() -> None:
    thing = service(externalIPs=["0.0.0.0", "203.0.113.7"])
    assert Frontend(pack("203.0.113.7"), 80, TCP) in frontends(service_ports(thing, CONFIG))
