"""Values of enumerations that are newer than this version: the rest of the object counts."""

from __future__ import annotations

from typing import Any

import pytest

from bpfsvc.base.address import pack
from bpfsvc.model import EndpointSlice, read_object
from tests.services.objects import HTTP, endpoint_slice, service

QUIC = {"name": "quic", "port": 443, "protocol": "QUIC"}


@pytest.mark.parametrize(
    ("field", "default"),
    [
        ("internalTrafficPolicy", "Cluster"),
        ("externalTrafficPolicy", "Cluster"),
        ("sessionAffinity", "None"),
    ],
)
def test_an_unknown_value_means_the_default(field: str, default: str) -> None:
    made = service(**{field: "Newer"})
    assert made.unknown_values == (
        f"spec.{field}: 'Newer' is unknown here, so it counts as {default}",
    )
    assert (made.internal_local, made.external_local, made.affinity_seconds) == (False, False, 0)
    assert service(**{field: default}).unknown_values == ()


def test_a_port_of_an_unknown_protocol_is_left_out_alone() -> None:
    made = service(ports=[QUIC, HTTP])
    assert [port.name for port in made.ports] == ["http"]
    assert made.unknown_values == (
        "spec.ports[0].protocol: 'QUIC' is unknown here, so this port is left out",
    )


def test_a_port_of_a_slice_with_an_unknown_protocol_is_left_out_alone() -> None:
    made = endpoint_slice("10.0.0.1 here", ports=({"name": "http", "port": 8080}, QUIC))
    assert [port.name for port in made.ports] == ["http"]
    assert made.unknown_values == (
        "ports[1].protocol: 'QUIC' is unknown here, so this port is left out",
    )


def test_a_port_of_classic_endpoints_with_an_unknown_protocol_is_left_out_alone() -> None:
    raw: dict[str, Any] = {
        "apiVersion": "v1",
        "kind": "Endpoints",
        "metadata": {"name": "web"},
        "subsets": [{"addresses": [{"ip": "10.0.0.1"}], "ports": [QUIC, {"port": 80}]}],
    }
    (made,) = read_object(raw)
    assert isinstance(made, EndpointSlice)
    assert [port.number for port in made.ports] == [80]
    assert made.unknown_values == (
        "subsets[0].ports[0].protocol: 'QUIC' is unknown here, so this port is left out",
    )


def test_an_address_of_an_unknown_mode_is_left_out_alone() -> None:
    """So does kube-proxy: only an address of mode VIP, or without a mode, is served."""
    ingress = ({"ip": "1.2.3.4", "ipMode": "Newer"}, {"ip": "1.2.3.5", "ipMode": "Proxy"})
    made = service(ingress=(*ingress, {"ip": "1.2.3.6", "ipMode": "VIP"}, {"ip": "1.2.3.7"}))
    assert made.load_balancer_ips == (pack("1.2.3.6"), pack("1.2.3.7"))
    assert made.unknown_values == (
        "status.loadBalancer.ingress[0].ipMode: 'Newer' is unknown here, "
        "so this address is left out",
    )


def test_the_cluster_ip_of_an_unknown_family_is_left_out_alone() -> None:
    made = service(clusterIPs=["10.96.0.1", "new::format"], ipFamilies=["IPv4", "IPv7"])
    assert made.cluster_ips == (pack("10.96.0.1"),)
    assert made.unknown_values == (
        "spec.ipFamilies[1]: 'IPv7' is unknown here, so its cluster IP is left out",
    )
