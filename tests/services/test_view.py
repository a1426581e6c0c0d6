"""The view of a Service: everything that is computed in one pass over its slices."""

from __future__ import annotations

from collections.abc import Mapping
from socket import IPPROTO_TCP, IPPROTO_UDP

import pytest

from bpfsvc.base.address import pack
from bpfsvc.model import EndpointSlice
from bpfsvc.services.entries import Place, ServicePort
from bpfsvc.services.port_endpoints import Endpoints
from bpfsvc.services.rules import endpoints
from bpfsvc.services.rules.view import NOTHING, HealthCheck, evaluate
from bpfsvc.services.scheduling.weights import SliceName
from tests.services.objects import CONFIG, HTTP, NODE, endpoint_slice, service

DNS = {"name": "dns", "port": 53, "protocol": "UDP"}
LOCAL = service(
    type="LoadBalancer",
    internalTrafficPolicy="Local",
    externalTrafficPolicy="Local",
    healthCheckNodePort=31000,
    ports=[HTTP, DNS],
)
SLICES = [
    endpoint_slice("10.0.0.1 here", "10.0.0.2 there"),
    endpoint_slice(
        "10.0.0.2 there", name="web-2", ports=({"name": "dns", "port": 53, "protocol": "UDP"},)
    ),
]


def test_one_view_holds_entries_health_check_missing_local_endpoints_and_udp() -> None:
    view = evaluate(LOCAL, SLICES, NODE, CONFIG)
    http, dns = (
        ServicePort("default", "web", name, protocol, 4)
        for name, protocol in (("http", IPPROTO_TCP), ("dns", IPPROTO_UDP))
    )
    assert [one.address for one in view.entries[http].backends] == [pack("10.0.0.1")]
    assert view.summary.health_checks == {4: HealthCheck(31000, 1)}
    assert view.summary.without_local == {("internal", 4): 1, ("external", 4): 1}
    assert view.summary.udp_serving == {dns: frozenset({(pack("10.0.0.2"), 53)})}


def test_a_service_of_another_proxy_has_no_health_check_here() -> None:
    elsewhere = service(
        labels={"service.kubernetes.io/service-proxy-name": "other"},
        type="LoadBalancer",
        externalTrafficPolicy="Local",
        healthCheckNodePort=31000,
    )
    assert evaluate(elsewhere, SLICES, NODE, CONFIG) == ({}, NOTHING)


def test_the_slices_are_merged_once_per_service_port(monkeypatch: pytest.MonkeyPatch) -> None:
    merged: list[str] = []
    merge = endpoints._merge

    def counted(
        slices: list[EndpointSlice], key: ServicePort, weights: Mapping[SliceName, int]
    ) -> tuple[Endpoints, Mapping[Place, int]]:
        merged.append(key.port_name)
        return merge(slices, key, weights)

    monkeypatch.setattr(endpoints, "_merge", counted)
    evaluate(LOCAL, SLICES, NODE, CONFIG)
    assert merged == ["http", "dns"]


def test_services_without_a_summary_share_one_empty_value() -> None:
    """After the first plan, ten thousand summaries may exist at once."""
    assert evaluate(service(), SLICES, NODE, CONFIG).summary is NOTHING
    assert evaluate(None, SLICES, NODE, CONFIG).summary is NOTHING
