"""Which addresses of a Service answer pings, and that it costs nothing where they do not."""

from __future__ import annotations

import pytest

from bpfsvc.base.address import unpack
from bpfsvc.model import EndpointSlice, Service
from bpfsvc.services.plans.diff import plan
from bpfsvc.services.plans.ids import Ids
from bpfsvc.services.plans.plan import Plan
from bpfsvc.services.plans.registry import ECHO_ADDRESSES
from bpfsvc.services.rules.context import ServiceConfig
from bpfsvc.services.rules.view import evaluate
from bpfsvc.services.scheduling.annotations import read_scheduling
from tests.services.objects import HTTP, NODE, endpoint_slice, service

ON, OFF = ServiceConfig(vip_echo=True), ServiceConfig()
HERE, THERE = "10.0.1.1 here", "10.0.2.1 there"
VIP, EXTERNAL, BALANCER = "10.96.0.1", "80.1.1.1", "90.1.1.1"
EVERYWHERE = service(
    type="LoadBalancer",
    externalIPs=[EXTERNAL],
    ingress=({"ip": BALANCER},),
    ports=[HTTP | {"nodePort": 30080}],
)


def planned(thing: Service, slices: list[EndpointSlice], config: ServiceConfig = ON) -> Plan:
    scheduling, _ = read_scheduling(thing, slices)
    entries = evaluate(thing, slices, NODE, config, scheduling).entries
    return plan({}, entries, Ids(100))


def answering(thing: Service, slices: list[EndpointSlice], config: ServiceConfig = ON) -> list[str]:
    """Return the addresses that answer, one for each service port that asks for it."""
    entries = planned(thing, slices, config).puts(ECHO_ADDRESSES)
    return sorted(unpack(one.address.address) for one in entries)


def test_all_addresses_of_a_service_answer_but_those_of_nodes() -> None:
    assert answering(EVERYWHERE, [endpoint_slice(HERE)]) == [VIP, EXTERNAL, BALANCER]


def test_where_it_is_off_there_is_no_entry_and_nothing_to_write() -> None:
    slices = [endpoint_slice(HERE)]
    off, on = planned(EVERYWHERE, slices, OFF), planned(EVERYWHERE, slices)
    assert off.puts(ECHO_ADDRESSES) == []
    assert len(on) - len(off) == len(on.puts(ECHO_ADDRESSES)) == 3


@pytest.mark.parametrize("spec", [{}, {"internalTrafficPolicy": "Local"}], ids=str)
def test_without_an_endpoint_for_any_client_a_cluster_ip_is_silent(spec: dict[str, str]) -> None:
    thing = service(**spec)
    assert answering(thing, []) == []
    assert answering(thing, [endpoint_slice("10.0.2.1 there dead")]) == []
    local = [VIP] if not spec else []
    assert answering(thing, [endpoint_slice(THERE)]) == local


def test_an_endpoint_that_drains_still_serves() -> None:
    draining = endpoint_slice("10.0.1.1 here draining")
    assert answering(service(), [draining]) == [VIP]


def test_endpoints_without_weight_serve_nobody_new() -> None:
    thing = service(annotations={"bpfsvc.io/weights": "node/here=0"})
    assert answering(thing, [endpoint_slice(HERE)]) == []


def test_a_balancer_answers_where_only_clients_inside_have_an_endpoint() -> None:
    """As ip_vs does; the health check is what keeps a balancer away from such a node."""
    thing = service(type="LoadBalancer", ingress=({"ip": BALANCER},), externalTrafficPolicy="Local")
    assert answering(thing, [endpoint_slice(THERE)]) == [VIP, BALANCER]


def test_each_service_port_asks_for_an_address_once() -> None:
    numbers = ({"name": "http", "port": 8080}, {"name": "admin", "port": 9090})
    slices = [endpoint_slice(HERE, ports=numbers)]
    ports = [HTTP, {"name": "admin", "port": 81}]
    assert answering(service(ports=ports), slices) == [VIP, VIP]
    assert answering(service(ports=ports), [endpoint_slice(HERE)]) == [VIP]
    assert answering(service(externalIPs=[VIP]), slices) == [VIP]
