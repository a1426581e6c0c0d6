"""Connections of the node's processes that the specification drops: silence, as by packets."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from bpfsvc.devtools.lab.dial import Protocol, ask, tally
from bpfsvc.devtools.lab.objects import port, service, service_cidr, slices
from tests.lab.testbed import (
    INGRESS,
    NO_PORT,
    SLICE_PORTS,
    WEB,
    Named,
    Testbed,
    built_testbed,
    objects,
)

SILENT = Named("silent", 71)  # internalTrafficPolicy Local, pods of node-2 only
CLOSED = Named("closed", 72)  # a load balancer for other clients
HELD = Named("held", 73)  # the same at the node's own address
FREE = Named("free", 99)  # no Service


@pytest.fixture(scope="module")
def place() -> Iterator[Testbed]:
    """Cluster IPs and the balancer's address are routed to node-2, which would answer."""
    with built_testbed(layout="routed") as testbed:
        lab, node = testbed.lab, testbed.node
        ranges: dict[str, Any] = {"loadBalancerSourceRanges": ["203.0.113.0/24", "2001:db8:9::/64"]}
        held = service(
            HELD.name,
            [HELD.vip(family) for family in (4, 6)],
            [port(7070, "web"), port(7070, "dns", "UDP")],
            type="LoadBalancer",
            ingress=[node.address(family) for family in (4, 6)],
            **ranges,
        )
        testbed.cluster.put(
            "services",
            service_cidr("10.96.0.0/16", "fd96::/108"),
            *objects(WEB, lab.pods),
            *objects(SILENT, list(lab.nodes[1].pods.values()), internalTrafficPolicy="Local"),
            *objects(CLOSED, lab.pods, ingress=list(INGRESS.values()), **ranges),
            held,
            *slices(HELD.name, lab.pods, SLICE_PORTS),
        )
        for network in ("10.96.0.0/16", "fd96::/64", "80.11.12.0/24", "2001:db8:80::/64"):
            router = lab.nodes[1].address(6 if ":" in network else 4)
            node.run(["ip", "route", "replace", network, "via", router])
        testbed.cluster.start()
        node.serve(7070)
        yield testbed


def test_a_dropped_connection_is_silent_and_does_not_leave_the_node(
    place: Testbed, family: int
) -> None:
    """Each would be answered by node-2, or refused there."""
    for address in (SILENT.vip(family), INGRESS[family], FREE.vip(family)):
        counts = tally(place.node, address, 80, count=1, timeout=0.1)
        assert counts == {"timeout": 1}, address


def test_a_dropped_datagram_is_an_error(place: Testbed, family: int) -> None:
    """As with kube-proxy, where netfilter drops it before it is sent."""
    assert tally(place.node, SILENT.vip(family), 80, "udp", count=1) == {"unreachable": 1}


def test_at_an_address_of_the_node_itself_it_is_an_error_and_no_listener_answers(
    place: Testbed, family: int
) -> None:
    """Its packets leave by no interface."""
    counts = tally(place.node, place.node.address(family), 7070, count=1)
    assert counts == {"unreachable": 1}


def test_a_client_bound_to_loopback_without_a_port_is_served(
    place: Testbed, transport: Protocol
) -> None:
    """curl --interface, proxies with a source address: the kernel chooses the port later."""
    for address in ("127.0.0.1", place.node.address(4)):
        answer = ask(
            place.node,
            address,
            WEB.node_port,
            transport,
            source=("127.0.0.1", 0),
            options=[NO_PORT],
        )
        assert answer.pod in {pod.name for pod in place.lab.pods}
        assert answer.remote == f"{address}:{WEB.node_port}"
